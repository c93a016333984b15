"""The journal: whole lines, torn lines, damaged lines, a lock, a full disk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from klimb.apps.label.journal import Journal, NotSaved, decode, encode, read
from klimb.errors import InputError

ENTRIES = [{"kind": "label", "row": k, "label": "ja, ü \u2028 \U0001f600 \n", "p": 0.1 * k} for k in range(5)]


def filled(path: Path) -> bytes:
    with Journal(path) as journal:
        journal.begin({"labels": ["yes", "no"]})
        for entry in ENTRIES:
            journal.append(entry)
    return path.read_bytes()


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    content = filled(path)
    assert content.count(b"\n") == 6
    assert list(read(path).entries) == ENTRIES
    assert path.stat().st_mode & 0o077 == 0  # nobody else's business


def test_cut_at_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the place of a crash: lines that were whole are there, the rest is kept aside, and writing goes on."""
    monkeypatch.setattr(os, "fsync", lambda file: None)  # hundreds of journals: no need to wait for the disk
    path = tmp_path / "a.jsonl"
    content = filled(path)
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        torn = path.with_name("a.jsonl.torn")
        torn.unlink(missing_ok=True)
        whole = content[:cut].rfind(b"\n") + 1
        with Journal(path) as journal:
            assert len(journal.entries) == max(0, content[:cut].count(b"\n") - 1)
            assert list(journal.entries) == ENTRIES[: len(journal.entries)]
            assert journal.torn == content[whole:cut]
            if not journal.header:
                journal.begin({"labels": ["a", "b"]})
            journal.append({"kind": "skip", "row": 9})
        assert read(path).entries[-1] == {"kind": "skip", "row": 9}
        assert not read(path).torn
        assert torn.exists() == (whole < cut)
        if whole < cut:
            assert torn.read_bytes() == content[whole:cut] + b"\n"


@pytest.mark.parametrize("tail", [b"\0" * 4096, b'{"kind":"label","row":1}\n', b"garbage\n", b"\n", b"\xff\xfe"])
def test_what_a_crash_may_leave_behind(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "a.jsonl"
    content = filled(path)
    path.write_bytes(content + tail)
    with Journal(path) as journal:
        assert list(journal.entries) == ENTRIES
        assert journal.torn == tail
    assert path.read_bytes() == content


def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = filled(path).splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"row":1', b'"row":7')
    path.write_bytes(b"".join(lines))
    before = path.read_bytes()
    with pytest.raises(InputError, match="got line 3, which does not"):
        Journal(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"a,b\n", b"hello", b'{"schema":"else"}\n', b"\x89PNG\r\n"])
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a journal of klimb label|checksum"):
        Journal(path)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_a_journal_that_never_began_leaves_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "a.jsonl"):
        pass
    assert os.listdir(tmp_path) == []


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Journal(path) as journal:
        journal.begin({})
        with pytest.raises(InputError, match="another klimb label has open"):
            Journal(path)
        code = ("import sys; from klimb.apps.label.journal import Journal\n"
                "try: Journal(sys.argv[1])\nexcept ValueError as error: print(error)")
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
        assert "another klimb label has open" in done.stdout
        assert list(read(path).entries) == []  # reading is free
    Journal(path).close()


@pytest.mark.parametrize("fails", ["write", "fsync"])
def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    path = tmp_path / "a.jsonl"
    content = filled(path)
    real_write = os.write

    def half(file: int, data: Any) -> int:
        real_write(file, bytes(data)[:10])  # some of it reaches the disk
        raise OSError(errno.ENOSPC, "No space left on device")

    def never(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with Journal(path) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, fails, half if fails == "write" else never)
            with pytest.raises(NotSaved, match=r"No space left|Input/output"):
                journal.append({"kind": "skip", "row": 1})
        assert path.read_bytes() == content
        journal.append({"kind": "skip", "row": 2})  # there is room again
    assert read(path).entries[-1] == {"kind": "skip", "row": 2}


def test_places_that_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the directory"):
        Journal(tmp_path)
    with pytest.raises(InputError, match="No such file or directory"):
        Journal(tmp_path / "nowhere" / "a.jsonl")
    if Path("/proc").is_dir():  # not even root can write there
        with pytest.raises(InputError, match=r"a journal that can be written at /proc/klimb\.jsonl"):
            Journal("/proc/klimb.jsonl")
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(InputError, match="Permission denied"):
            Journal(tmp_path / "a.jsonl")


def test_a_line_says_when_it_is_not_whole() -> None:
    line = encode({"a": 1, "crc": "inside"}).rstrip()
    assert decode(line) == {"a": 1, "crc": "inside"}
    assert all(decode(line[:k]) is None for k in range(len(line)))
    assert decode(line.replace(b"1", b"2", 1)) is None
    with pytest.raises(ValueError, match="JSON"):
        encode({"p": float("nan")})
