"""The data sets of the papers, read from the files as they are published; nothing is downloaded."""

from klimb.reproduce.data.catalogue import CATALOGUE, Published
from klimb.reproduce.data.library import DataSet, Library

__all__ = ["CATALOGUE", "DataSet", "Library", "Published"]
