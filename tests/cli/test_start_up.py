"""Starting: help without torch, names on demand, the allocator, threads, and which engine."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from command_line import fit

import fl_lightning
from fl_lightning.cli import command
from fl_lightning.cli.federation_cli import FederationCLI
from fl_lightning.server.takeover import set_threads
from fl_lightning.studies.commands import COMMANDS
from fl_lightning.utilities import allocator


def python(code: str, **environment: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout


WITHOUT_TORCH = {
    "--help": "usage: fl-lightning",
    "evaluate --help": "--checkpoints A.ckpt B.ckpt",
    "-h": "usage: fl-lightning",
    "--version": f"fl-lightning {fl_lightning.__version__}",
    "fit --help": "usage: fl-lightning",
    "partition -h": "usage: fl-lightning",
    "init --help": "usage: fl-lightning init",
    "configs": "  fednova_mnist ",
    "algorithms": "FedBN ",
}


@pytest.mark.parametrize(
    "typed", [pytest.param(one, marks=pytest.mark.slow if one != "fit --help" else ()) for one in WITHOUT_TORCH]
)
def test_help_and_small_commands_do_not_import_torch(typed):
    code = f"import sys; sys.argv = ['fl-lightning', *'{typed}'.split()]\nfrom fl_lightning.cli import command\n"
    code += "try: command.main()\nexcept SystemExit: pass\nprint('torch' in sys.modules, 'lightning' in sys.modules)"
    said = python(code)
    assert said.splitlines()[-1] == "False False"
    assert WITHOUT_TORCH[typed] in said


@pytest.mark.slow
@pytest.mark.parametrize("imported", ["", ".flower.wire.serve, fl_lightning.flower.site.parent"])
def test_the_package_servers_and_sites_do_not_import_torch(imported):
    """Only a site's worker does, which trains."""
    assert python(f"import sys; import fl_lightning{imported}; print('torch' in sys.modules)") == "False\n"


def test_help_lists_the_subcommands_that_there_are():
    own = {"init", "configs", "algorithms", "export", "schema", "serve", "register", "sites", "site"}
    assert set(command.COMMANDS) == {*FederationCLI.subcommands(), *COMMANDS, *own}


def test_a_module_in_the_current_folder_is_found_last(tmp_path, monkeypatch):
    """As a console script, whose path begins with the folder of the script; PYTHONSAFEPATH leaves the folder out."""
    monkeypatch.chdir(tmp_path)
    path = [entry for entry in sys.path if entry != ""]
    for safe, last in ((False, str(tmp_path)), (True, path[-1])):
        monkeypatch.setattr(sys, "path", list(path))
        monkeypatch.setattr(sys, "flags", SimpleNamespace(safe_path=safe))
        command._see_this_folder()
        command._see_this_folder()
        assert sys.path == (path if safe else [*path, last])


def test_every_public_name_is_found_on_demand():
    assert set(fl_lightning.__all__) <= set(dir(fl_lightning))
    assert fl_lightning.AdaFed.__module__ == "fl_lightning.strategies.adafed"
    with pytest.raises(AttributeError, match="module 'fl_lightning' has no attribute 'FedNothing'"):
        _ = fl_lightning.FedNothing


MEBIBYTES = """
def mebibytes():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) // 1024
"""
KEPT = """
import torch, fl_lightning
def kept():
    before = mebibytes()
    live = [torch.ones(2**22) for _ in range(10)]  # 160 MiB
    del live
    return mebibytes() - before
without = kept()
assert fl_lightning.keep_freed_memory()
print(without, kept())
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_freed_memory_is_kept():
    without, kept = map(int, python(MEBIBYTES + KEPT).split())
    assert without < 20
    assert kept > 150


PIECES = """
import time
from fl_lightning.utilities.allocator import reuse_pieces
def faults():
    return int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[7])
def passed_on():
    before = faults()
    for _ in range(20):
        bytearray(b"1") * 5_000_000
    return faults() - before
assert reuse_pieces(1e6)  # so long that nothing is returned meanwhile
begin, faulted = mebibytes(), passed_on()
live, pieces = [], []
for _ in range(40):
    pieces.append(bytearray(b"1") * 5_000_000)
    live.append(bytearray(b"1") * 400)  # keeps the piece before it from being trimmed
del pieces
at_once = mebibytes() - begin
assert reuse_pieces(0.1)
end = time.monotonic() + 60
while mebibytes() - begin >= 20 and time.monotonic() < end:
    time.sleep(0.1)
print(faulted, at_once, mebibytes() - begin)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_pieces_reuse_memory_which_is_returned_now_and_then():
    faults, at_once, later = map(int, python(MEBIBYTES + PIECES).split())
    assert faults < 3 * 1300  # the pages of few of the 20 pieces
    assert at_once > 40
    assert later < 20


# Whether the kernel was asked for huge pages: how many it gives depends on how fragmented the machine's memory is.
HUGE = """
import re
import sys
from fl_lightning.cli.command import main
sys.argv = ["fl-lightning", "fit", "--config", "adafed_mnist", "--print_config"]
sys.stdout = open("/dev/null", "w")
try:
    main()
except SystemExit:
    pass
import torch
tensor = torch.ones(2**26, dtype=torch.uint8)
middle, within = tensor.data_ptr() + 2**25, False
for line in open("/proc/self/smaps"):
    if address := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
        within = int(address[1], 16) <= middle < int(address[2], 16)
    elif within and line.startswith("VmFlags"):
        print("hg" in line.split(), file=sys.__stdout__)
"""
PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.slow
@pytest.mark.skipif(not PAGES.exists() or "[madvise]" not in PAGES.read_text(), reason="huge pages are off, or for all")
def test_large_tensors_are_in_huge_pages_unless_the_user_decides(monkeypatch):
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    assert python(HUGE).strip() == "True"
    assert python(HUGE, THP_MEM_ALLOC_ENABLE="0").strip() == "False"


@pytest.mark.slow
def test_the_command_line_can_leave_the_allocator_alone_and_the_users_own_settings_win(fl, monkeypatch):
    called = []
    monkeypatch.setattr("fl_lightning.cli.federation_cli.keep_freed_memory", lambda: called.append(1))
    for keep, times in (("true", 1), ("false", 1)):
        assert fit(fl, "--trainer.logger=false", "--trainer.fast_dev_run=1", f"--keep_freed_memory={keep}")[0] == 0
        assert len(called) == times
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "100000")
    assert not allocator.keep_freed_memory()


@pytest.mark.parametrize(
    ("wanted", "devices", "kind", "threads"),
    [(None, 1, "cpu", 3), (None, 2, "cpu", 1), (None, 2, "cuda", 3), (2, 2, "cpu", 2), (2, 1, "cpu", 2)],
)
def test_ranks_that_share_a_cpu_take_one_thread_each(wanted, devices, kind, threads):
    trainer: Any = SimpleNamespace(num_devices=devices, strategy=SimpleNamespace(root_device=torch.device(kind)))
    torch.set_num_threads(3)
    try:
        with ExitStack() as cleanup:
            set_threads(wanted, trainer, cleanup)
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
