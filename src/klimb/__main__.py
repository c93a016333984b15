"""``python -m klimb`` is the command line."""

from klimb.cli import main

if __name__ == "__main__":
    main()
