"""Starting: help without torch, names on demand, the allocator, threads, and which engine."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import fit
from federations import Plain, every_round, federate, same_bits, weights

import fl_lightning
from fl_lightning import APFL, MOON, ConfigurationError, Ditto, LocalTraining, PFedMe
from fl_lightning.cli import command
from fl_lightning.cli.federation_cli import FederationCLI
from fl_lightning.clients.engines.fastest import Trial, attempt, choose
from fl_lightning.server.outer_trainer import set_threads
from fl_lightning.studies.commands import COMMANDS
from fl_lightning.utilities import allocator


def python(code: str, **environment: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    env |= {"PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout


@pytest.mark.parametrize("argument", ["--help", "-h", "--version", "fit --help", "partition -h"])
def test_help_and_version_do_not_import_torch(argument):
    code = f"import sys; sys.argv = ['fl-lightning', *'{argument}'.split()]; import fl_lightning.cli.command as c; c.main()"
    said = python(f"{code}; print('torch' in sys.modules, 'lightning' in sys.modules)")
    assert said.splitlines()[-1] == "False False"
    assert ("fl-lightning " + fl_lightning.__version__ if argument == "--version" else "usage: fl-lightning") in said


def test_configs_do_not_import_torch():
    code = "import sys; sys.argv = ['fl-lightning', 'configs']; import fl_lightning.cli.command as c; c.main()"
    said = python(f"{code}; print('torch' in sys.modules, 'lightning' in sys.modules)")
    assert "  fednova_mnist " in said
    assert said.splitlines()[-1] == "False False"


def test_algorithms_do_not_import_torch():
    code = "import sys; sys.argv = ['fl-lightning', 'algorithms']; import fl_lightning.cli.command as c; c.main()"
    said = python(f"{code}; print('torch' in sys.modules, 'lightning' in sys.modules)")
    assert "FedBN " in said
    assert said.splitlines()[-1] == "False False"


def test_servers_and_sites_do_not_import_torch():
    """Only a site's worker does, which trains."""
    said = python("import sys; import fl_lightning.flower.serve, fl_lightning.flower.site; print('torch' in sys.modules)")
    assert said == "False\n"


def test_a_wrong_subcommand_gets_the_nearest(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fl-lightning", "fitt", "--config", "adafed_mnist"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    assert "There is no subcommand 'fitt'. Did you mean fit? Subcommands: fit, validate" in capsys.readouterr().err


def test_help_lists_the_subcommands_that_there_are():
    own = {"init", "dashboard", "configs", "algorithms", "export", "schema", "serve", "register", "sites", "site"}
    assert set(command.SUBCOMMANDS) == {*FederationCLI.subcommands(), *COMMANDS, *own}
    for small in ("init", "dashboard"):
        code = f"import sys; sys.argv = ['fl-lightning', '{small}', '--help']\n"
        code += "from fl_lightning.cli import command\ntry: command.main()\n"
        said = python(code + "except SystemExit: print('torch' in sys.modules)")
        assert said.startswith(f"usage: fl-lightning {small}")
        assert said.splitlines()[-1] == "False"


def test_a_module_in_the_current_folder_is_found_last(tmp_path, monkeypatch):
    """As a console script, whose path begins with the folder of the script; PYTHONSAFEPATH leaves the folder out."""
    monkeypatch.chdir(tmp_path)
    path = [entry for entry in sys.path if entry != ""]
    for safe, last in ((False, str(tmp_path)), (True, path[-1])):
        monkeypatch.setattr(sys, "path", list(path))
        monkeypatch.setattr(command, "_is_safe", lambda safe=safe: safe)
        command._see_this_folder()
        command._see_this_folder()
        assert sys.path == (path if safe else [*path, last])


def test_other_arguments_reach_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fl-lightning", "fit", "--no_such"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    assert "no_such" in capsys.readouterr().err


def test_every_public_name_is_found_on_demand():
    assert set(fl_lightning.__all__) <= set(dir(fl_lightning))
    assert python("import fl_lightning, sys; print('torch' in sys.modules)").strip() == "False"
    assert fl_lightning.AdaFed.__module__ == "fl_lightning.strategies.adafed"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fl_lightning' has no attribute 'FedNothing'"):
        _ = fl_lightning.FedNothing


KEPT = """
import torch, fl_lightning
def mebibytes():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) // 1024
def kept():
    before = mebibytes()
    live = [torch.ones(2**22) for _ in range(10)]  # 160 MiB
    del live
    return mebibytes() - before
without = kept()
assert fl_lightning.keep_freed_memory()
print(without, kept())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_freed_memory_is_kept():
    without, kept = map(int, python(KEPT).split())
    assert without < 20
    assert kept > 150


PIECES = """
import threading, time
from fl_lightning.utilities.allocator import reuse_pieces
def mebibytes():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) // 1024
def faults():
    return int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[7])
live = []
def pass_on_in_threads():
    def pass_on():
        pieces = []
        for _ in range(10):
            pieces.append(bytearray(b"1") * 5_000_000)
            live.append(bytearray(b"1") * 400)  # keeps the piece before it from being trimmed
        pieces.clear()
    threads = [threading.Thread(target=pass_on) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
def passed_on():
    before = faults()
    for _ in range(20):
        bytearray(b"1") * 5_000_000
    return faults() - before
assert reuse_pieces(1e6)  # so long that nothing is returned meanwhile
begin, faulted = mebibytes(), passed_on()
at_once, end = 0, time.monotonic() + 30
while at_once <= 40 and time.monotonic() < end:  # threads that run one after another share what the first has left
    pass_on_in_threads()
    at_once = mebibytes() - begin
assert reuse_pieces(0.1)
end = time.monotonic() + 60
while mebibytes() - begin >= 20 and time.monotonic() < end:
    time.sleep(0.1)
print(faulted, at_once, mebibytes() - begin)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_pieces_reuse_memory_which_is_returned_now_and_then():
    faults, at_once, later = map(int, python(PIECES).split())
    assert faults < 3 * 1300  # the pages of few of the 20 pieces
    assert at_once > 40
    assert later < 20


HUGE = """
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
rollup = open("/proc/self/smaps_rollup").read().splitlines()
print(next(line for line in rollup if line.startswith("AnonHugePages")).split()[1], file=sys.__stdout__)
"""
PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not PAGES.exists() or "[madvise]" not in PAGES.read_text(), reason="huge pages are off, or for all")
def test_large_tensors_are_in_huge_pages_unless_the_user_decides(monkeypatch):
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    assert int(python(HUGE)) > 60 * 1024
    assert int(python(HUGE, THP_MEM_ALLOC_ENABLE="0")) < 10 * 1024


def test_the_users_own_allocator_settings_win(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "100000")
    assert not allocator.keep_freed_memory()


def test_the_command_line_can_leave_the_allocator_alone(fl, tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr("fl_lightning.cli.federation_cli.keep_freed_memory", lambda: called.append(1))
    for keep, times in (("true", 1), ("false", 1)):
        folder = f"--trainer.default_root_dir={tmp_path / keep}"
        assert fit(fl, "--trainer.logger=false", folder, f"--keep_freed_memory={keep}")[0] == 0
        assert len(called) == times


class _Ranks:
    """As much of a Trainer as decides about threads."""

    def __init__(self, devices: int, kind: str) -> None:
        self.num_devices = devices
        self.strategy: Any = type("Strategy", (), {"root_device": torch.device(kind)})


@pytest.mark.parametrize(
    ("wanted", "devices", "kind", "threads"),
    [(None, 1, "cpu", 3), (None, 2, "cpu", 1), (None, 2, "cuda", 3), (2, 2, "cpu", 2), (2, 1, "cpu", 2)],
)
def test_ranks_that_share_a_cpu_take_one_thread_each(wanted, devices, kind, threads):
    from contextlib import ExitStack

    torch.set_num_threads(3)
    try:
        with ExitStack() as cleanup:
            set_threads(wanted, _Ranks(devices, kind), cleanup)
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


def trials(trainer: float, fabric: float | str, stacked: float | str) -> dict[str, Trial]:
    values = {"trainer": trainer, "fabric": fabric, "stacked": stacked}
    return {name: Trial(refused=x) if isinstance(x, str) else Trial(x) for name, x in values.items()}


@pytest.mark.parametrize(
    ("ranks", "chosen"),
    [
        ([trials(1.0, 0.8, 0.5)], "stacked"),
        ([trials(1.0, 0.99, 0.98)], "trainer"),  # not worth it
        ([trials(1.0, 0.8, "dropout")], "fabric"),
        ([trials(1.0, 0.8, 0.1), trials(1.0, 0.8, 3.0)], "fabric"),
        ([trials(1.0, 0.8, 0.1), {}], "stacked"),
        ([trials(1.0, 0.5, 0.1), trials(1.0, 0.5, "no")], "fabric"),
        ([{}], "trainer"),
    ],
)
def test_the_fastest_engine_that_can_is_chosen(ranks, chosen):
    name, why = choose(ranks)
    assert name == chosen
    assert f"engine '{chosen}'" in why
    assert all(trial.refused in why for rank in ranks for trial in rank.values())


def test_an_engine_that_refuses_is_left_out():
    def measure(name: str) -> float:
        if name == "stacked":
            raise ConfigurationError("it cannot")
        return 1.0

    assert attempt(measure)["stacked"].refused == "it cannot"
    with pytest.raises(ConfigurationError, match="it cannot"):
        attempt(lambda name: measure("stacked"))


def test_fastest_says_what_it_chose_and_trains_the_same(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr("fl_lightning.clients.local_pool.rank_zero_info", said.append)
    finals = []
    for engine in ("trainer", "fastest"):
        torch.manual_seed(5)
        module = Plain()
        federate(module, 2, local=LocalTraining(engine=engine))
        finals.append(weights(module))
    (sentence,) = said
    assert sentence.startswith("Local training uses the engine '")
    for name in ("trainer", "fabric", "stacked"):
        assert f"{name} " in sentence
    assert all(torch.allclose(finals[0][name], finals[1][name], atol=1e-6) for name in finals[0])


@pytest.mark.parametrize("strategy", [MOON("net.2"), PFedMe(), APFL(), Ditto()])
def test_fastest_leaves_out_an_engine_that_refuses_the_strategys_rule(strategy, monkeypatch):
    """Rules take no part in the timing, where ``stacked`` would be possible and often the fastest."""
    said: list[str] = []
    monkeypatch.setattr("fl_lightning.clients.local_pool.rank_zero_info", said.append)
    monkeypatch.setattr("fl_lightning.clients.engines.fastest._GAIN", math.inf)  # the last possible engine
    federate(Plain(), 1, local=LocalTraining(engine="fastest"), strategy=strategy)
    assert said[0].startswith("Local training uses the engine 'fabric'")
    assert f"stacked is not possible: Stacked clients do not support {type(strategy.client_rule()).__name__}" in said[0]


def test_channels_last_is_the_same_within_rounding():
    class Conv(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(
                torch.nn.Unflatten(1, (1, 2, 2)), torch.nn.Conv2d(1, 3, 2), torch.nn.Flatten(), torch.nn.Linear(3, 3)
            )

    finals = []
    for chosen in (False, True):
        torch.manual_seed(6)
        module = Conv()
        federate(module, 3, local=LocalTraining(channels_last=chosen))
        finals.append(weights(module))
    assert not same_bits(weights(Conv()), finals[0])
    assert all(torch.allclose(finals[0][name], finals[1][name], atol=1e-6) for name in finals[0])


def test_fastest_compiles_only_what_is_stacked(monkeypatch):
    said: list[str] = []
    compiled: list[str] = []
    keep = lambda graph, **_: compiled.append(sys._getframe(1).f_globals["__name__"]) or graph  # noqa: E731
    monkeypatch.setattr(torch, "compile", keep)  # a real one takes half a minute: tests/clients/test_stacked.py has it
    monkeypatch.setattr("fl_lightning.clients.local_pool.rank_zero_info", said.append)
    federate(Plain(), 1, local=LocalTraining(engine="fastest", compile=True, max_steps=1, max_epochs=-1))
    assert "trainer " in said[0]
    assert set(compiled) == {"fl_lightning.clients.engines.stacked.step"}


def test_any_failure_of_a_candidate_leaves_it_out():
    def measure(name: str) -> float:
        if name == "fabric":
            raise MemoryError("too much")
        return 1.0

    assert attempt(measure)["fabric"].refused == "MemoryError: too much"


def test_a_resumed_run_keeps_the_engine_that_was_chosen(tmp_path, monkeypatch):
    saved: Any = {
        "local": LocalTraining(engine="fastest"),
        "flags": {"enable_checkpointing": True, "default_root_dir": tmp_path},
    }
    federate(Plain(), 1, every_round(tmp_path), **saved)
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]["FederatedOrchestrator"]
    assert state["engine"] in ("trainer", "fabric", "stacked")
    monkeypatch.setattr("fl_lightning.clients.assembly.time_engines", lambda *_, **__: pytest.fail("tried again"))
    federate(Plain(), 2, ckpt_path=str(tmp_path / "last.ckpt"), **saved)
