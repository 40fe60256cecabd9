"""What a server and a site keep on their disks, and for how long."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fl_lightning.flower.site.store import SiteStore
from fl_lightning.flower.wire.retention import Sweeper, drop_unnamed, sweep

_UPDATE = b"an update of site a " * 10_000


def _found(folder: Path) -> int:
    """Return how often an update's text is in any of a folder's files."""
    return sum(path.read_bytes().count(b"an update of site a") for path in folder.iterdir() if path.is_file())


@pytest.fixture
def database(tmp_path: Path) -> Iterator[tuple[Path, sqlite3.Connection]]:
    """Return a database in the mode of a SuperLink's, with updates that were deleted."""
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        for pragma in ("auto_vacuum = INCREMENTAL", "secure_delete = ON", "journal_mode = WAL"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("CREATE TABLE messages (content BLOB)")
        connection.execute("CREATE TABLE objects (object_id TEXT)")
        connection.executemany("INSERT INTO messages VALUES (?)", [(_UPDATE,)] * 20)
        connection.commit()
        connection.execute("DELETE FROM messages")
        connection.commit()
        yield path, connection


def test_a_sweep_leaves_nothing_of_deleted_updates(database):
    path, _ = database
    before = path.stat().st_size
    assert before > 20 * len(_UPDATE)
    assert _found(path.parent) > 0  # in the write-ahead log, although SQLite has overwritten the pages
    sweep(path)
    assert _found(path.parent) == 0
    assert path.stat().st_size < before / 100


def test_a_sweep_takes_many_short_transactions(database, monkeypatch):
    """A long one would keep the SuperLink from writing, which then refuses what sites ask for."""
    path, connection = database
    monkeypatch.setattr("fl_lightning.flower.wire.retention._PAGES", 100)
    pages = connection.execute("PRAGMA freelist_count").fetchone()[0]
    commits: list[str] = []
    opened = sqlite3.connect

    def traced(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        found = opened(*arguments, **settings)
        found.set_trace_callback(lambda text: commits.append(text) if "incremental_vacuum" in text else None)
        return found

    monkeypatch.setattr(sqlite3, "connect", traced)
    sweep(path)
    assert len(commits) == -(-pages // 100) > 5
    assert connection.execute("PRAGMA freelist_count").fetchone()[0] == 0


def test_a_sweeper_waits_while_the_superlink_writes_and_sweeps_at_the_end(database, monkeypatch: pytest.MonkeyPatch):
    path, connection = database
    monkeypatch.setattr("fl_lightning.flower.wire.retention._PERIOD", 0.05)
    monkeypatch.setattr("fl_lightning.flower.wire.retention._PATIENCE", 0.05)
    connection.execute("BEGIN IMMEDIATE")
    with closing(Sweeper(path, path.parent / "contents")) as sweeper:
        sweeper._thread.join(0.5)
        assert sweeper._thread.is_alive()  # although each sweep has failed so far
        assert _found(path.parent) > 0
        connection.commit()
    assert _found(path.parent) == 0


def test_a_sweeper_waits_for_the_database(tmp_path):
    with closing(Sweeper(tmp_path / "state.db", tmp_path / "contents")):
        pass
    assert not (tmp_path / "state.db").exists()


def test_a_site_keeps_one_reply(tmp_path):
    store = SiteStore(tmp_path, "a" * 32)
    for key in ("1", "2", "3"):
        store.save({"round": key}, key, b"reply " + key.encode())
    assert store.reply("3") == b"reply 3"
    assert [path.name for path in (tmp_path / "federations" / ("a" * 32)).glob("reply-*")] == ["reply-3"]
    store.save({"round": "4"}, "4", None)
    assert store.reply("3") is None
    assert not [*tmp_path.rglob("reply-*")]


def test_a_reply_that_the_state_does_not_name_is_not_sent(tmp_path):
    """A site that is killed between its two files has the new reply beside the old state, and trains again."""
    store = SiteStore(tmp_path, "a" * 32)
    store.save({"round": 1}, "1", b"reply 1")
    (tmp_path / "federations" / ("a" * 32) / "reply-2").write_bytes(b"reply 2")
    for later in (store, SiteStore(tmp_path, "a" * 32)):
        assert later.reply("2") is None
        assert later.reply("1") == b"reply 1"


def test_the_replies_of_a_federation_go_when_the_site_works_for_another(tmp_path):
    SiteStore(tmp_path, "a" * 32).save({"memory": {}}, "1", b"reply")
    SiteStore(tmp_path, "b" * 32)
    assert not [*tmp_path.rglob("reply-*")]
    assert SiteStore(tmp_path, "a" * 32).load() is not None  # what a resumed fit needs stays


@pytest.fixture
def contents(database) -> Path:
    """Return the folder with the contents of an object, of one that was deleted, and of one that is being written."""
    path, connection = database
    folder = path.parent / "contents"
    drop_unnamed(path, folder)  # there is none
    folder.mkdir()
    for name in ("a" * 64, "b" * 64, "being_written"):
        (folder / name).write_bytes(_UPDATE)
    connection.execute("INSERT INTO objects VALUES (?)", ("a" * 64,))
    connection.commit()
    return folder


def left(contents: Path) -> list[str]:
    return sorted(file.name for file in contents.iterdir())


def test_files_of_deleted_objects_are_deleted(database, contents):
    drop_unnamed(database[0], contents)
    assert left(contents) == ["a" * 64, "being_written"]


def test_what_a_killed_server_left_is_deleted_when_it_starts(database, contents):
    """Not five seconds later, and not after an hour."""
    with closing(Sweeper(database[0], contents)):
        assert left(contents) == ["a" * 64]
        assert _found(database[0].parent) == 0


def test_no_file_is_deleted_while_an_object_is_stored(database, contents, monkeypatch):
    monkeypatch.setattr("fl_lightning.flower.wire.retention._PATIENCE", 0.05)
    database[1].execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError):
        drop_unnamed(database[0], contents)
    assert len(left(contents)) == 3
