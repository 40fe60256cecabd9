"""A folder is used by one run at a time."""

import errno
import os
import signal
import sys
import time
import warnings

import pytest
from filelock import FileLock

from fl_lightning.errors import ConfigurationError
from fl_lightning.utilities.folder_lock import lock_folder
from fl_lightning.utilities.ledger import Ledger


def forked(act) -> int:
    """Run a function in a forked process; its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        act()
        status = 0
    finally:
        os._exit(status)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_lock_ends_with_its_process_even_if_a_worker_lives_on(tmp_path):
    """As after SIGKILL, with a loader's worker that has not noticed yet."""
    read, write = os.pipe()

    def hold():
        os.setsid()
        with lock_folder(tmp_path):
            forked(work)
            time.sleep(60)

    def work():  # writes only now that it has let go of the lock, as every forked process does at once
        os.write(write, b"held")
        time.sleep(60)

    holder = forked(hold)
    try:
        assert os.read(read, 4) == b"held"
        message = rf"Another run is using .*\(process {holder} on"
        with pytest.raises(ConfigurationError, match=message), lock_folder(tmp_path):
            pass
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        with lock_folder(tmp_path) as locked:
            assert locked
    finally:
        os.killpg(holder, signal.SIGKILL)
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_many_that_come_and_go_are_never_two_at_once(tmp_path):
    """The file is deleted and made anew each time."""

    def work():
        done = 0
        while done < 50:
            try:
                with lock_folder(tmp_path):
                    (tmp_path / "inside").touch(exist_ok=False)
                    time.sleep(0.001)
                    (tmp_path / "inside").unlink()
                    done += 1
            except ConfigurationError as error:
                if "Another run is using" not in str(error):
                    raise

    for process in [forked(work) for _ in range(3)]:
        assert os.waitpid(process, 0)[1] == 0


def refuse(self):
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with lock_folder(tmp_path) as locked:
            assert locked
    monkeypatch.setattr(FileLock, "_acquire", refuse)
    with pytest.warns(UserWarning, match="without locks \\(No locks available\\)") as said, lock_folder(tmp_path) as locked:
        assert not locked
    assert [one.filename for one in said] == [__file__]


def test_a_ledger_needs_locks_where_it_checks_what_was_spent(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger.jsonl", dict, ConfigurationError, "Restore it.", creates=True)
    monkeypatch.setattr(FileLock, "_acquire", refuse)
    ledger.append({"a": 1})
    assert ledger.read() == [{"a": 1}]
    with pytest.raises(ConfigurationError, match=r"cannot be used \(No locks available\), and nothing is released"):
        ledger.append({"a": 2}, check=lambda entries: None)
