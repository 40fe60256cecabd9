"""What a machine offers, from files that look like Linux's."""

from pathlib import Path

import pytest

from fl_lightning.utilities import machine

VERSION_2 = {
    "proc/self/cgroup": "0::/pod/box\n",
    "cgroup/pod/cpu.max": "350000 100000\n",  # the quota of a group around
    "cgroup/pod/box/cpu.max": "max 100000\n",
}
VERSION_1 = {  # in a container: the path is the host's, so only the root of the mount exists
    "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n",
    "cgroup/cpu/cpu.cfs_quota_us": "50000\n",
    "cgroup/cpu/cpu.cfs_period_us": "100000\n",
}


@pytest.mark.parametrize(
    ("files", "cores"),
    [({}, 8), (VERSION_2, 3), (VERSION_1, 1), (VERSION_1 | {"cgroup/cpu/cpu.cfs_quota_us": "-1\n"}, 8)],
    ids=["no groups", "version 2", "version 1", "no limit"],
)
def test_groups_limit_their_members(files, cores, tmp_path, monkeypatch):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert machine.cores() == cores


def test_another_system(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_PROC", Path(tmp_path))
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert machine.cores() == 6
