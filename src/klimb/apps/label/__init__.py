"""The labelling page: a model asks for the labels it can learn most from, a person answers by key press.

    klimb label reviews.csv --text review

`items_of` makes items of a table, `Journal` keeps every answer, `Session` ties both to a model, `LabelServer` shows it.
Each is imported when it is first used: an export of labels needs no model.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klimb.apps.label.items import LabelItems, items_of
    from klimb.apps.label.journal import Journal, Settings
    from klimb.apps.label.server import LabelServer
    from klimb.apps.label.session import Session

__all__ = ["Journal", "LabelItems", "LabelServer", "Session", "Settings", "items_of"]
_HOME = {"LabelItems": "items", "items_of": "items", "Journal": "journal", "LabelServer": "server",
         "Session": "session", "Settings": "journal"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'klimb.apps.label' has no attribute {name!r}")
    return getattr(import_module(f"klimb.apps.label.{_HOME[name]}"), name)
