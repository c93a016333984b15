"""The data sets of the papers, read from the files as they are published; nothing is downloaded."""

from klimb.apps.papers.data.catalogue import CATALOGUE, Published
from klimb.apps.papers.data.formats import DataSet, TrainTest, halves
from klimb.apps.papers.data.library import Library

__all__ = ["CATALOGUE", "DataSet", "Library", "Published", "TrainTest", "halves"]
