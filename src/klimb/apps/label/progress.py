"""What has been asked and answered, as a function of the answers alone.

The page must show the next item at once, so a batch is *ordered* while one item is still on the screen. What is
ordered, and in which state, depends on the order of the answers only, never on the clock: a session resumes exactly.

    queue       items that wait to be answered; the first is on the screen
    orders      batches that are being chosen; each will be appended to the queue
    turn        the number of answers (labels, skips, undos) so far
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from klimb.errors import InputError, require

AHEAD = 2  # items that are chosen or being chosen at any time: the one on the screen, and one to follow it


class Order(NamedTuple):
    """A batch to be chosen, with these labels known, among items that no earlier order has chosen."""
    number: int
    size: int
    first: int  # how many items were chosen before it
    labels: tuple[tuple[int, int], ...]  # (row, label) in the order they were given
    skipped: frozenset[int]


class AnswerStep(NamedTuple):
    """An answer that can be taken back."""
    row: int
    label: int | None  # None: skipped


@dataclass
class LabelProgress:
    """The state of a session. ``askable`` counts the items that can be asked, ``batch`` those chosen at a time."""
    askable: int
    batch: int
    queue: deque[int] = field(default_factory=deque)
    labels: dict[int, int] = field(default_factory=dict)
    skipped: set[int] = field(default_factory=set)
    steps: list[AnswerStep] = field(default_factory=list)
    turn: int = 0
    n_orders: int = 0
    n_chosen: int = 0  # items chosen or being chosen since the beginning
    open_orders: dict[int, int] = field(default_factory=dict)  # number -> size

    @property
    def current(self) -> int | None:
        """The row to be shown; None while the next batch is being chosen, or at the end."""
        return self.queue[0] if self.queue else None

    @property
    def left(self) -> int:
        """Items that are neither labelled nor skipped."""
        return self.askable - len(self.labels) - len(self.skipped)

    def answer(self, row: int, label: int | None) -> None:
        """The label of the item on the screen, or None to skip it."""
        require(row == self.current, "an answer to the item on the screen", f"row {row} instead of {self.current}",
                "Load the page again.")
        self.queue.popleft()
        if label is None:
            self.skipped.add(row)
        else:
            self.labels[row] = label
        self.steps.append(AnswerStep(row, label))
        self.turn += 1

    def last_step(self) -> AnswerStep:
        """The last answer that stands."""
        require(self.steps, "an answer to take back", "a session without any", "Answer an item first.")
        return self.steps[-1]

    def undo(self) -> AnswerStep:
        """Take back the last answer that stands; its item is on the screen again."""
        step = self.last_step()
        self.steps.pop()
        if step.label is None:
            self.skipped.remove(step.row)
        else:
            del self.labels[step.row]
        self.queue.appendleft(step.row)
        self.turn += 1
        return step

    def place_orders(self) -> list[Order]:
        """The orders that the state calls for: none as long as another item follows the one on the screen."""
        placed: list[Order] = []
        while True:
            ahead = len(self.queue) + sum(self.open_orders.values())
            size = min(self.batch, self.left - ahead)
            if ahead >= AHEAD or size <= 0:
                return placed
            order = Order(self.n_orders, size, self.n_chosen, tuple(self.labels.items()), frozenset(self.skipped))
            self.open_orders[order.number] = size
            self.n_orders += 1
            self.n_chosen += size
            placed.append(order)

    def fulfil(self, number: int, rows: Sequence[int]) -> None:
        """An order has been carried out; orders are, one after the other."""
        if self.open_orders.get(number) != len(rows) or number != min(self.open_orders):
            raise InputError(f"the items of order {min(self.open_orders, default=None)}", f"{len(rows)} of {number}",
                             "This is an error in klimb, or in the journal.")
        del self.open_orders[number]
        self.queue.extend(rows)
