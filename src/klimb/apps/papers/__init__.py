"""The tables and figures of the papers klimb stands on, one command each: ``klimb reproduce``."""

from klimb.apps.papers.data import Library
from klimb.apps.papers.experiment import EXPERIMENTS, Record, run

__all__ = ["EXPERIMENTS", "Library", "Record", "run"]
