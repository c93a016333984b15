"""Which orders are placed, and when, depends on the answers alone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from klimb.apps.label.progress import LabelProgress, Order


def story(actions: list[str], delays: list[int], batch: int, n: int) -> tuple[list[Order], list[int | None]]:
    """Play ``actions``; order k is carried out only after so many further attempts to act as ``delays`` says.

    Items of an order are n, n - 1, ... that no order has had: what matters here is who asks when, not for what.
    """
    progress = LabelProgress(askable=n, batch=batch)
    orders: list[Order] = []
    shown: list[int | None] = []
    open_orders: list[tuple[Order, int]] = []
    fresh = iter(range(n))

    def place() -> None:
        for order in progress.place_orders():
            orders.append(order)
            open_orders.append((order, delays[order.number % len(delays)]))

    def fulfil(force: bool) -> None:
        while open_orders and (force or open_orders[0][1] <= 0):
            order, _ = open_orders.pop(0)
            progress.fulfil(order.number, [next(fresh) for _ in range(order.size)])
            place()
            force = False
        open_orders[:] = [(order, delay - 1) for order, delay in open_orders]

    place()
    for action in actions:
        fulfil(False)
        if action == "undo":
            if progress.steps:
                progress.undo()
        else:
            while progress.current is None and open_orders:
                fulfil(True)  # nothing on the screen: wait
            if progress.current is None:
                break
            progress.answer(progress.current, None if action == "skip" else len(action) % 2)
        place()
    while open_orders:
        fulfil(True)
    shown.append(progress.current)
    return orders, [*progress.labels, *progress.queue, *shown]


@given(st.lists(st.sampled_from(["yes", "no", "skip", "undo"]), max_size=40), st.lists(st.integers(0, 6), min_size=1),
       st.integers(1, 5), st.integers(2, 30))
@settings(max_examples=200)
def test_a_slow_model_changes_nothing(actions: list[str], delays: list[int], batch: int, n: int) -> None:
    assert story(actions, delays, batch, n) == story(actions, [0], batch, n)


@given(st.lists(st.sampled_from(["yes", "no", "skip", "undo"]), max_size=60), st.integers(1, 5), st.integers(2, 12))
@settings(max_examples=100)
def test_every_item_is_somewhere_and_only_once(actions: list[str], batch: int, n: int) -> None:
    progress = LabelProgress(askable=n, batch=batch)
    fresh = iter(range(n))
    for action in ["", *actions]:
        if action == "undo" and progress.steps:
            progress.undo()
        elif action not in ("", "undo") and progress.current is not None:
            progress.answer(progress.current, None if action == "skip" else 0)
        for order in progress.place_orders():
            progress.fulfil(order.number, [next(fresh) for _ in range(order.size)])
        places = [*progress.queue, *progress.labels, *progress.skipped]
        assert len(places) == len(set(places)) == progress.n_chosen
        # Somebody who answers never waits for a model that is quick: as long as there are items, two are ready.
        assert len(progress.queue) >= min(2, progress.left)
