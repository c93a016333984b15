"""``python -m klimb.demo``: the bundled example, its report into the current directory."""

from pathlib import Path

from klimb.demo.run import run

if __name__ == "__main__":
    run(Path())
