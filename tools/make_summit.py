"""Makes summit.csv, the bundled example: ``python tools/make_summit.py > src/klimb/demo/summit.csv``.

The attempts are invented. Wind and a late start keep a party from the top, days of acclimatisation help, some routes
are harder than others, the size of the party matters little, and guides differ. A few winds were not written down. The
standard library draws the numbers: its streams are the same on every machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

SEED = 8848
ROWS = 400
HEADER = ("summit", "wind", "days", "party", "start", "route", "guide")
ROUTES = {"ridge": 0.0, "couloir": -0.7, "north face": -1.4}
NAMES = ("Ama", "Bruno", "Chhiring", "Dawa", "Elin", "Farid", "Gesine", "Hiro", "Ines", "Jonas", "Kaji", "Lhakpa",
         "Mirela", "Nima", "Olaf", "Pasang", "Quentin", "Rosa", "Sonam", "Tenzing")
GUIDE_SD = 0.8


def attempts() -> Iterator[tuple[int | float | str, ...]]:
    """The rows: 1 for a summit reached, wind (m/s), days acclimatised, people, hour of the start, route, guide."""
    draw = random.Random(SEED)
    skill = {name: draw.gauss(0.0, GUIDE_SD) for name in NAMES}
    for _ in range(ROWS):
        wind = round(draw.gammavariate(4.0, 2.5), 1)
        days = draw.randint(0, 14)
        party = 1 + min(draw.randint(0, 7), draw.randint(0, 7))
        start = round(max(draw.gauss(4.5, 1.5), 0.0), 1)
        route = draw.choices(tuple(ROUTES), weights=(5, 3, 2))[0]
        guide = draw.choice(NAMES)
        log_odds = (0.9 - 0.20 * (wind - 10.0) + 0.18 * (days - 7) + 0.03 * (party - 3) - 0.40 * (start - 4.5)
                    + ROUTES[route] + skill[guide])
        reached = int(draw.random() < 1.0 / (1.0 + math.exp(-log_odds)))
        noted = wind if draw.random() > 0.015 else "NA"
        yield reached, noted, days, party, start, route, guide


def as_csv() -> str:
    """The whole file as text."""
    lines = [",".join(HEADER), *(",".join(str(entry) for entry in row) for row in attempts())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(as_csv(), end="")
