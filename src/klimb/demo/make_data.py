"""Makes summit.csv, the bundled example: ``python -m klimb.demo.make_data > summit.csv``.

The attempts are invented. Wind and a late start keep a party from the top, days of acclimatisation help, the size of
the party matters little. The standard library draws the numbers: its streams are the same on every machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

SEED = 8848
ROWS = 200
HEADER = ("wind", "acclimatised", "party", "start")


def attempts() -> Iterator[tuple[float, int, int, float, int]]:
    """The rows: wind (m/s), days acclimatised, people in the party, hour of the start, and 1 for a summit reached."""
    draw = random.Random(SEED)
    for _ in range(ROWS):
        wind = round(draw.gammavariate(4.0, 2.5), 1)
        acclimatised = draw.randint(0, 14)
        party = 1 + min(draw.randint(0, 7), draw.randint(0, 7))
        start = round(draw.gauss(4.5, 1.5), 1)
        log_odds = 0.4 - 0.22 * (wind - 10.0) + 0.20 * (acclimatised - 7) + 0.05 * (party - 3) - 0.45 * (start - 4.5)
        reached = int(draw.random() < 1.0 / (1.0 + math.exp(-log_odds)))
        yield wind, acclimatised, party, start, reached


def as_csv() -> str:
    """The whole file as text."""
    lines = [",".join((*HEADER, "summit"))]
    lines += [",".join(str(entry) for entry in row) for row in attempts()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_csv(), end="")
