"""The tables and figures of the papers klimb stands on, one command each: ``klimb reproduce``."""

from klimb.reproduce.data import Library
from klimb.reproduce.record import Record
from klimb.reproduce.registry import EXPERIMENTS
from klimb.reproduce.runner import run

__all__ = ["EXPERIMENTS", "Library", "Record", "run"]
