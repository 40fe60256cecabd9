import atexit
import functools
import gc
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch reads it: also for processes that tests start, on shared cores

import pytest
from hypothesis import settings
from shared_runs import adafed_run, copied_run, resumed_run  # noqa: F401 - fixtures

settings.register_profile("quick", max_examples=20, deadline=None)
settings.register_profile("thorough", max_examples=200, deadline=None)  # --hypothesis-profile=thorough, in 'make test-all'
settings.load_profile("quick")

os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests with Hypothesis."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("property")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Prepare a process that runs tests; one that only hands them to others starts ten seconds earlier without it."""
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        from lightning.fabric.utilities import registry

        import fl_lightning.cli.federation_cli  # noqa: F401 - the largest part, which a look for garbage then leaves out

        registry.entry_points = functools.cache(registry.entry_points)  # 13 ms for each Trainer, of all packages' metadata
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        atexit.register(gc.unfreeze)  # after pytest's five collections, of 240 ms each with all that was imported


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """One intra-op thread (small models), and a folder of its own for whatever a run writes."""
    import torch
    import wandb
    from wandb.sdk import wandb_setup

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        yield
    torch.set_num_threads(threads)
    if wandb_setup._singleton is not None:  # it would keep this test's folder and settings for the next one's runs
        wandb.teardown()


@pytest.fixture(autouse=True)
def _ctrl_c():
    """Ctrl+C works as in a terminal: Lightning ignores it once it has come, and a shell's background jobs always ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def _only_png(monkeypatch):
    """Skip the other formats of figures, which take twice as long: for tests that do not look at them."""
    from matplotlib.figure import Figure

    save = Figure.savefig
    png = lambda figure, path, **options: None if str(path).endswith((".svg", ".pdf")) else save(figure, path, **options)  # noqa: E731
    monkeypatch.setattr(Figure, "savefig", png)


@pytest.fixture
def _no_wandb(monkeypatch):
    """What the command line sets for W&B must not reach the next test."""
    for name in ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", os.devnull)
    monkeypatch.setenv("WANDB_CONSOLE", "off")


@pytest.fixture
def _disabled_wandb(_no_wandb, monkeypatch):
    """The same calls of W&B, without its process and its files: for tests that look at neither."""
    monkeypatch.setenv("WANDB_MODE", "disabled")


@pytest.fixture
def typed(monkeypatch, capsys):
    """Type any command; returns the exit status and what was printed."""
    from fl_lightning.cli import command

    def type_(*args: str, main=command.main) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fl-lightning", *args])
        status = 0
        try:
            main()
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        return status, "".join(capsys.readouterr())

    return type_


@pytest.fixture
def fl(typed, capsys, _no_wandb):
    """Type a command of Lightning's command line; a fit writes no page."""
    import wandb

    from fl_lightning.cli.federation_cli import main

    def type_(*args: str) -> tuple[int, str]:
        try:
            status, text = typed(*args, main=main)
        finally:
            wandb.finish()  # as the end of the process would
            wandb.teardown()
        return status, text + "".join(capsys.readouterr())

    return type_


@pytest.fixture(autouse=True)
def _levels_of_logs() -> Iterator[None]:
    """Restore Lightning's levels of logs, which the tools' ``quiet`` raises."""
    loggers = [logging.getLogger(f"lightning.{name}") for name in ("pytorch", "fabric")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
