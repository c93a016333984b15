"""The labelling page: a model asks for the labels it can learn most from, a person answers by key press.

    klimb label reviews.csv --text review

`items_of` makes items of a table, `Journal` keeps every answer, `Session` ties both to a model, `LabelServer` shows it.
"""

from klimb.label.items import Items, items_of
from klimb.label.journal import Journal
from klimb.label.server import LabelServer
from klimb.label.session import Session
from klimb.label.settings import Settings

__all__ = ["Items", "Journal", "LabelServer", "Session", "Settings", "items_of"]
