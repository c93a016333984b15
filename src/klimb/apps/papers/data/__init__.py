"""The data sets of the papers, read from the files as they are published; nothing is downloaded."""

from klimb.apps.papers.data.formats import DataSet, TrainTest, halves
from klimb.apps.papers.data.library import CATALOGUE, Library, Published

__all__ = ["CATALOGUE", "DataSet", "Library", "Published", "TrainTest", "halves"]
