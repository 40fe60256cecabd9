"""What a machine offers, from files that look like Linux's."""

from pathlib import Path

import pytest

from fl_lightning.utilities import machine


@pytest.fixture
def linux(tmp_path, monkeypatch):
    """Write files of a system with 8 cores."""

    def write(files: dict[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    return write


def test_without_groups(linux):
    assert machine.cores() == 8


def test_groups_of_version_2_limit_their_members(linux):
    """The quota is that of a group around."""
    linux(
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "cgroup/pod/cpu.max": "350000 100000\n",
            "cgroup/pod/box/cpu.max": "max 100000\n",
        }
    )
    assert machine.cores() == 3


def test_groups_of_version_1_in_a_container(linux):
    """The path is the host's, so only the root of the mount exists."""
    linux(
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n",
            "cgroup/cpu/cpu.cfs_quota_us": "50000\n",
            "cgroup/cpu/cpu.cfs_period_us": "100000\n",
        }
    )
    assert machine.cores() == 1


def test_groups_of_version_1_without_limits(linux):
    linux({"proc/self/cgroup": "3:cpu:/\n", "cgroup/cpu/cpu.cfs_quota_us": "-1\n", "cgroup/cpu/cpu.cfs_period_us": "100000\n"})
    assert machine.cores() == 8


def test_another_system(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_PROC", Path(tmp_path))
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert machine.cores() == 6
