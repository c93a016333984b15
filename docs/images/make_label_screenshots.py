"""Makes the screenshots of the labelling page: ``python docs/images/make_label_screenshots.py`` (chromium and Pillow).

The texts are invented: lines of a guest book of mountain huts, each from a few sentences that praise, complain or say
nothing. ``python docs/images/make_label_screenshots.py hut.csv`` only writes the table.
"""

from __future__ import annotations

import csv
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
LABELS = 84  # given before the pictures are taken
LARGEST = 150_000  # bytes of a picture

PRAISE = (
    "The soup after the {climb} was the best we have ever had.", "We slept like stones and woke to a glowing ridge.",
    "The warden gave us {food} for free and laughed with our children.", "Warm stove, dry boots, honest prices.",
    "{When} we were welcomed like old friends.", "The blankets smelled of pine and everything was spotless.",
    "Such kind people up here, and the view takes your breath away.", "Worth every metre of the {climb}.",
    "We will come back in autumn and bring our friends.", "Fresh bread, clear stars, silence: wonderful.",
    "They stayed up late to dry our clothes, we are so grateful.", "Perfect base for the {climb}, friendly and calm.",
)
COMPLAINT = (
    "The soup was cold and cost a fortune.", "Nobody slept: snoring, slamming doors and a dripping roof.",
    "The warden shouted at us because we asked for {food}.", "Mice in the bunk room, mould behind the beds.",
    "{When} we were sent away although we had booked.", "The blankets were filthy and the toilet was blocked.",
    "Overcrowded, loud and badly organised.", "For this price I expect at least running water.",
    "We left before dawn and will never come back.", "Stale bread, rude staff, a dirty kitchen.",
    "They lost our reservation and did not even apologise.", "A shame, the {climb} deserves a better hut.",
)
NEITHER = (
    "We came over the {climb} in four hours.", "{When} the fog lifted only at noon.", "Dinner is at half past six.",
    "There were nine of us from the {club}.", "Tomorrow we go on to the next hut.", "We had {food} and tea.",
    "The path above the lake is marked in red.", "It rained until evening.", "We carried two ropes and a stove.",
    "The book was signed by a party from the {club} last week.", "Snow lies down to the {climb}.", "Room for forty.",
)
WORDS = {"climb": ("north ridge", "glacier", "scree slope", "pass", "old mule track"),
         "food": ("dumplings", "apple cake", "an extra bowl of stew", "hot milk", "porridge"),
         "club": ("Lucerne section", "students' club", "Brno alpine club", "brass band"),
         "When": ("On Friday", "Late at night", "After the storm", "In heavy snow")}


def guest_book(n: int = 500, seed: int = 3) -> list[tuple[str, str, int, str]]:
    """Rows: hut, entry, night, and whether the guest would come again."""
    rng = np.random.default_rng(seed)

    def sentence(kind: tuple[str, ...]) -> str:
        return str(rng.choice(kind)).format(**{name: rng.choice(words) for name, words in WORDS.items()})

    rows = []
    for _ in range(n):
        again = rng.random() < 0.55
        mood, other = (PRAISE, COMPLAINT) if again else (COMPLAINT, PRAISE)
        parts = [sentence(kind) for kind in (mood, NEITHER) for _ in range(rng.integers(1, 4))]
        if rng.random() < 0.12:
            parts.append(sentence(other))
        rng.shuffle(parts)
        hut = str(rng.choice(["Krähennest", "Lake hut", "Upper bivouac", "Saddle house"]))
        rows.append((hut, " ".join(dict.fromkeys(parts)), int(rng.integers(1, 4)), "yes" if again else "no"))
    return rows


def write_table(path: Path) -> list[tuple[str, str, int, str]]:
    """The guest book as CSV."""
    rows = guest_book()
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["hut", "entry", "nights", "again"])
        writer.writerows(rows)
    return rows


def shrink(path: Path, target: Path) -> None:
    """As many colours as fit into the limit."""
    from PIL import Image

    picture = Image.open(path).convert("RGB")
    for colours in (256, 128, 64, 32):
        picture.quantize(colours, dither=Image.Dither.NONE).save(target, optimize=True)
        if target.stat().st_size <= LARGEST:
            break
    print(f"{target.name}: {picture.width} x {picture.height}, {target.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """All pictures, from one session that a browser really went through."""
    from tests.apps.label.browser import Browser

    from klimb.apps.label import Journal, LabelServer, Session, Settings, items_of

    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        place = Path(folder)
        rows = write_table(place / "guestbook.csv")
        table = dict(zip(("hut", "entry", "nights", "again"), zip(*rows, strict=True), strict=True))
        items = items_of(table, text=["entry"], show=["hut", "nights"])
        settings = Settings(text=("entry",))
        journal = Journal(place / "guestbook.labels.jsonl")
        journal.begin(settings.header(items.fingerprint, items.n, "guestbook.csv", "2026-01-01T00:00:00Z"))
        session = Session(items, settings, journal, source="guestbook.csv")
        server = LabelServer(session)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.page(server.url, (1180, 1090))
        for turn in range(LABELS):
            page.until(f"state !== null && state.turn === {turn} && state.item !== null && !busy", 60)
            page.press("1" if rows[page.run("state.item.row")][3] == "yes" else "2")
        page.until(f"state.turn === {LABELS} && state.item !== null && !busy", 60)
        session.settle()
        page.run("new Promise(resume => setTimeout(resume, 1500))")
        shot = place / "shot.png"
        page.picture(shot)
        shrink(shot, HERE / "label-light.png")
        page.scheme("dark")
        page.picture(shot)
        shrink(shot, HERE / "label-dark.png")
        page.scheme("light")
        page.resize(390, 1010, 1.5)
        page.picture(shot)
        shrink(shot, HERE / "label-narrow.png")
        print(f"{LABELS} labels. {session.state()['advice']['text']}")
        session.close()
        server.shutdown()
        server.server_close()
        journal.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_table(Path(sys.argv[1]))
    else:
        main()
