"""What a reproduction is: jobs to be done one by one, tables and a picture made of what they found.

An `Experiment` names its jobs in the order in which they run; each returns plain JSON and may look at what the jobs
before it found. The runner keeps every result as soon as it is there, so that a run that was killed goes on where it
stopped. `EXPERIMENTS` has every table and figure that can be reproduced, by its key: a new one is one entry there. The
experiments live in modules of their own, imported when they are run: listing them is quick.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from klimb.apps.papers.data import Library
from klimb.errors import InputError, nearest

Size: TypeAlias = Literal["full", "quick", "tiny"]  # as the paper; under two minutes; seconds, for tests
SIZES: tuple[Size, ...] = ("full", "quick", "tiny")
Found: TypeAlias = dict[str, Any]  # what a job returns: numbers, texts, lists, dicts of them
Results: TypeAlias = Mapping[str, Found]  # by the names of the jobs


class Job(NamedTuple):
    """A piece of an experiment that is done in one go, and once only."""

    name: str  # unique within the experiment, such as "sonar/ep/3"
    work: Callable[[Results], Found]


class PaperTable(NamedTuple):
    """Cells ready to be shown; the first ``left`` columns are text."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


class Experiment(NamedTuple):
    """One table or figure of a paper."""

    plan: Callable[[Library, Size], Sequence[Job]]
    tables: Callable[[Results], Sequence[PaperTable]]
    draw: Callable[[Results, Path], None] | None = None
    caption: str = ""  # of the picture: what to see; this and the remarks stand in notes.md
    remarks: tuple[str, ...] = ()  # why figures differ from the paper's


def by_parts(results: Results) -> dict[tuple[str, ...], Found]:
    """Results by the parts of their names: ("sonar", "ep", "3")."""
    return {tuple(name.split("/")): found for name, found in results.items()}


PAPERS = {
    "A": "Khan et al., Kullback-Leibler proximal variational inference (2015)",
    "B": "the same, an earlier version with a supplement",
    "S": "Sheth and Khardon, A fixed-point operator for latent Gaussian models (2016)",
    "N": "Nickisch and Seeger, Convex variational Bayesian inference for large scale GLMs (2009)",
    "G": "Guo et al., Boosting variational inference (2016)",
}


class PaperEntry(NamedTuple):
    """A table or figure: what it shows, where its experiment is (``module:NAME``), the data sets it needs."""

    title: str
    home: str
    data: tuple[str, ...]
    full: str  # about how long a full run takes, on one core

    def experiment(self) -> Experiment:
        """The experiment itself, with its caption and remarks; imports its module."""
        module, _, name = self.home.partition(":")
        found: Experiment = getattr(import_module(f"klimb.apps.papers.{module}"), name)
        return found._replace(caption=" ".join(noted(self.home, ">")), remarks=tuple(noted(self.home, "-")))


def noted(home: str, mark: str) -> list[str]:
    """The lines of notes.md that begin with ``mark`` below headings that name ``home``."""
    found, here = list[str](), False
    for line in Path(__file__).with_name("notes.md").read_text(encoding="utf-8").splitlines():
        begins, _, text = line.partition(" ")
        here = home in text.split() if begins == "#" else here
        found += [text] if here and begins == mark else []
    return found


GRID_SETS = ("sonar", "ionosphere", "usps_3vs5", "triazines", "boston", "space_ga")

EXPERIMENTS: dict[str, PaperEntry] = {
    "A-table1": PaperEntry("the data sets and the grids of hyperparameters", "logistic:TABLE1",
                           ("a1a", "colon", *GRID_SETS), "10 s"),
    "A-table2": PaperEntry("Bayesian logistic regression: evidence, log-loss and time of five methods",
                           "logistic:TABLE2", ("a1a", "colon"), "4 min"),
    "B-table2": PaperEntry("the same on Gisette, or on what stands in for it", "logistic:GISETTE",
                           ("usps", "madelon", "arcene", "dexter"), "30 min"),
    "A-table3": PaperEntry("Gaussian processes over grids: log-loss and time of Laplace, EP and the proximal method",
                           "processes:TABLE3", GRID_SETS, "2 h"),
    "A-figure1": PaperEntry("log-loss and time over the grid for USPS 3 against 5, and predicted probabilities",
                            "processes:FIGURE1", ("usps_3vs5",), "15 min"),
    "B-admm": PaperEntry("distributed optimisation: the exact reduction and Bregman ADMM over blocks of rows",
                         "consensus:TABLE", ("a1a", "german"), "1 min"),
    "S-figure1": PaperEntry("where the curvature of a logistic site grows with its variance", "traces:FIGURE1",
                            ("german",), "5 s"),
    "S-figure2": PaperEntry("the bound against time: generalised linear models", "traces:FIGURE2",
                            ("a9a", "german", "abalone", "flares", "boston", "space_ga"), "2 min"),
    "S-figure3": PaperEntry("the bound against time: Gaussian processes", "traces:FIGURE3",
                            ("german", "ionosphere", "flares", "abalone", "boston", "stock"), "2 min"),
    "S-figure4": PaperEntry("the bound against time: sparse processes with Laplace noise", "traces:FIGURE4",
                            ("stock", "space_ga"), "1 min"),
    "S-figure5": PaperEntry("the bound against time: processes with Student-t noise", "traces:FIGURE5",
                            ("boston", "stock"), "1 min"),
    "N-table1": PaperEntry("products with the design that a fit takes (the table of section 2.4)", "products:TABLE",
                           ("a9a", "reuters"), "3 min"),
    "N-figure2": PaperEntry("active learning: error against labels, for scores and for chance",
                            "active_learning:FIGURE2", ("a9a", "imdb", "farm_ads", "reuters", "rcv1_small"), "1 h"),
    "G-figure1": PaperEntry("boosted mixtures for a Cauchy density and for mixtures", "boosting:FIGURE1", (), "1 min"),
    "G-figure2": PaperEntry("means and covariances of a logistic regression by boosting", "boosting:FIGURE2",
                            ("nodal",), "2 min"),
}


def canonical(key: str) -> str:
    """The key as it is written in the registry; its letters may be of either case."""
    names = {name.lower(): name for name in EXPERIMENTS}
    if key.lower() in names:
        return names[key.lower()]
    raise InputError("expected the name of a table or figure", repr(key),
                     nearest(key, EXPERIMENTS).replace("'", "") + "klimb reproduce --list names them all.")
