"""Files that a kill or a full disk leaves whole."""

import csv
import os
from pathlib import Path

import pytest

from fl_lightning.callbacks.federation_report import append_rows, forget_rounds
from fl_lightning.errors import DataError
from fl_lightning.utilities.atomic_file import write_whole
from fl_lightning.utilities.csv_file import read_rows


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_full_disk_leaves_the_former_content(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    target = tmp_path / "new" / "a.txt"
    for content in (b"older", b"old"):
        write_whole(target, content)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(target, b"new")
    assert target.read_bytes() == b"old"
    assert names(target.parent) == ["a.txt"]


def test_two_processes_do_not_share_the_unfinished_file(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append(names(tmp_path)))
    for process in (11, 12):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        write_whole(tmp_path / "a.txt", b"new")
    assert seen[0] == [".a.txt.11.partial"]
    assert ".a.txt.12.partial" in [name for unfinished in seen[1:] for name in unfinished]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the process that dies is a copy of this one")
@pytest.mark.parametrize("moment", ["write", "replace"])
def test_a_kill_while_rounds_are_forgotten_loses_no_earlier_one(moment, tmp_path):
    """The process dies at its first write into a file, or just before the rename."""
    path = tmp_path / "client_rounds.csv"
    append_rows(path, ["round", "client"], [[round_idx, 0] for round_idx in range(4)])

    def die(*arguments, **settings):
        os._exit(9)

    child = os.fork()
    if not child:
        if moment == "write":
            csv.writer = die
        else:
            os.replace = os.rename = Path.replace = die
        try:
            forget_rounds(path, 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert read_rows(path)[1:3] == [["0", "0"], ["1", "0"]]
    forget_rounds(path, 2)
    assert read_rows(path) == [["round", "client"], ["0", "0"], ["1", "0"]]


def test_rounds_before_a_resume_stay_in_a_file_that_cannot_be_read(tmp_path):
    path = tmp_path / "failures.csv"
    path.write_text(f"round,cause\n0,{'x' * 200_000}\n", encoding="utf-8")  # longer than a cell that csv reads
    with pytest.raises(DataError, match=r"failures.csv' cannot be read: field larger .* Repair it, or move it away"):
        forget_rounds(path, 1)
    assert path.stat().st_size > 200_000
