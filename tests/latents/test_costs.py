"""Costs of latents by counts: they order the ways to fit a model as experience does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from klimb.latents import LATENTS
from klimb.latents.costs import Shape, cheapest

TALL = Shape(100_000, 20, 2_000_000)
GROUPED = Shape(100_000, 20_010, 1_200_000, n_levels=20_000, border=10, dense=False)
WIDE = Shape(200, 20_000, 4_000_000)
HUGE = Shape(50_000, 15_000, 4_000_000, dense=False, memory=8e9)
TIMES = Shape(20_000, 20_000, 0, level_size=3, chain=True)
PROCESS = Shape(800, 800, 0, kernel=True)
INDUCED = Shape(200_000, 200, 0, kernel=True)


def costs(shape):
    found = {name: latent.costs(shape) for name, latent in LATENTS.items()}
    return {name: option for name, option in found.items() if option is not None}


WINNERS = {
    "tall": (TALL, "primal", {"Weights", "Implicit"}),
    "grouped": (GROUPED, "arrow", {"Weights", "Implicit", "Mixed"}),
    "wide": (WIDE, "dual", {"Weights", "Implicit"}),
    "huge": (HUGE, "double loop", {"Weights", "Implicit"}),
    "times": (TIMES, "chain", {"Markov", "Kernel"}),
    "process": (PROCESS, "kernel", {"Kernel"}),
    "induced": (INDUCED, "inducing", {"Kernel", "Inducing"}),
    "stacked": (replace(TALL, n_outputs=4), "primal", {"Weights"}),
    "apart": (replace(TALL, n_outputs=4, apart=True), "4 x primal", {"Weights", "Outputs"}),
    "two processes": (replace(PROCESS, n_outputs=2, n_sites=1600, n_weights=1600, apart=True), "2 x kernel",
                      {"Outputs"}),
}


@pytest.mark.parametrize("name", WINNERS)
def test_the_cheapest_way(name):
    shape, winner, able = WINNERS[name]
    found = costs(shape)
    assert set(found) == able
    assert cheapest(found.values(), shape.memory).name == winner


@pytest.mark.parametrize("name", ["tall", "grouped", "wide", "times", "process", "induced"])
def test_more_data_cost_more(name):
    shape = WINNERS[name][0]
    more = replace(shape, n_sites=2 * shape.n_sites, n_nonzeros=2 * shape.n_nonzeros)
    larger = costs(more)
    for name, option in costs(shape).items():
        assert larger[name].flops > option.flops > 0
        assert larger[name].bytes > option.bytes > 0


def test_memory_decides_where_time_does_not():
    wide = replace(WIDE, n_sites=12_000, n_weights=4000, n_nonzeros=48_000_000)
    assert LATENTS["Weights"].costs(wide).name == "primal"
    option = cheapest(costs(replace(wide, memory=1e6)).values(), 1e6)  # nothing fits: the smallest
    assert option.bytes == min(one.bytes for one in costs(replace(wide, memory=1e6)).values())
