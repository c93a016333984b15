"""The command line: ``klimb fit``, ``predict``, ``report``, ``compare``, ``info``, ``calibrate``, ``label``, ...

Results go to standard output, messages and progress to standard error. Exit codes: 0 fitted and converged, 1 something
about the input is wrong, 2 the command was not understood, 3 fitted but not converged or in doubt, 4 fitted by a model
that does not suit the data (``--strict``), 130 interrupted.
"""

import sys
from collections.abc import Sequence

USER_ERROR, USAGE, IN_DOUBT, MISFIT, INTERRUPTED = 1, 2, 3, 4, 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    try:
        code = run(arguments)
    except KeyboardInterrupt:  # before click could catch it
        code = INTERRUPTED
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Errors are one message on standard error, never a traceback.

    >>> run(["--version"])  # doctest: +ELLIPSIS
    klimb ...
    0
    """
    import click

    from klimb.cli.app import app
    from klimb.cli.shell import complain, hush, terminate_softly
    from klimb.errors import KlimbError
    try:
        with terminate_softly():
            code = app.main(None if arguments is None else list(arguments), prog_name="klimb", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.UsageError as error:
        error.show()
        return USAGE
    except click.Abort:
        complain("interrupted; no file was written")
        return INTERRUPTED
    except click.ClickException as error:
        complain(error.format_message())
        return USER_ERROR
    except KlimbError as error:
        complain(str(error))
        return USER_ERROR
    except BrokenPipeError:
        hush()
        return 0
    except MemoryError:
        complain("there is not enough memory for this. Name fewer columns in the formula, or fit a part of the rows.")
        return USER_ERROR
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        complain(f"{where}{error.strerror or error}")
        return USER_ERROR
