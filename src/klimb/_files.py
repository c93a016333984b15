"""Files that are there in full or, after an error, an interruption or a crash, as they were before."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from klimb.errors import InputError


@contextlib.contextmanager
def draft_of(path: str | os.PathLike[str]) -> Iterator[Path]:
    """An empty file beside ``path`` that replaces it once all is on the disk; links and permissions are kept."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError("a file is needed to write to", f"{path}, a directory", "Add the name of a file in it.")
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = (target if target.exists() else draft).stat().st_mode & 0o7777
        yield draft
        os.chmod(draft, mode)
        to_disk(draft)
        os.replace(draft, target)
    except FileNotFoundError as error:
        raise InputError("the directory of a file must exist", f"no {target.parent}", "Create it first.") from error
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """A stream into a draft of ``path``; lines end as they are written."""
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    target = Path(path)
    if target.exists() and not target.is_file() and not target.is_dir():  # a device or a pipe cannot be replaced
        with open(target, mode, **text) as stream:
            yield stream
        return
    with draft_of(path) as draft, open(draft, mode, **text) as stream:
        yield stream


def to_disk(path: Path) -> None:
    """Let the bytes of a file, or the names in a folder, reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
