"""Real processes of Flower in asynchronous rounds: a site, the SuperLink and the server die. Run with ``-m flower``."""

import contextlib
import json
import subprocess
from pathlib import Path

import flower_processes
from federation_demo import Federation, same_bits, wait_for, weights
from flower_processes import MARKS, kill, start, told

from fl_lightning.cli.federation_cli import main

pytestmark = MARKS
running, federation = flower_processes.running, flower_processes.federation  # the fixtures

ASYNCHRONOUS = (
    *("--federation.strategy", "FedAsync", "--federation.asynchronous", '{"concurrency": 3, "buffer": 1}'),
    *("--federation.faults.policy", "skip", "--trainer.max_epochs", "14"),
    *("--federation.local.max_epochs", "30", "--federation.local.engine", "fabric"),
)

LIFE = 500
"""The seconds for a few updates on a busy machine."""


def arrivals(federation: Federation) -> list[dict]:
    """Return the ends of tasks so far."""
    path = federation.folder / "server" / "run" / "arrivals.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines[1:] if line.endswith("}")]


def after(federation: Federation, fit: subprocess.Popen, updates: int) -> None:
    """Wait for further updates, or for the end of the fit."""
    begun = len(arrivals(federation))
    wait_for(lambda: fit.poll() is not None or len(arrivals(federation)) >= begun + updates, LIFE, "updates")


def test_a_site_the_superlink_and_the_server_die_and_the_run_is_repeated_to_the_bit(federation):
    fit = start(federation, "run", *ASYNCHRONOUS)
    after(federation, fit, 2)
    kill(federation.sites["hospital_b"])
    again = told(federation.folder / "hospital_b" / "site.log", "trained.")
    federation.start_site("hospital_b")
    after(federation, fit, 2)  # the others go on
    kill(federation.server)
    federation.serve()
    after(federation, fit, 1)
    kill(fit)
    before = len(arrivals(federation))
    assert 4 <= before < 14
    assert start(federation, "run", *ASYNCHRONOUS, "--ckpt_path", "last").wait(LIFE) == 0
    log = (federation.folder / "server" / "fit.log").read_text()
    assert "Tasks that were under way when the run stopped are asked for once more: " in log
    assert again()
    assert len([one for one in arrivals(federation) if not one["lost"]]) == 14
    with contextlib.chdir(federation.folder / "server"):
        replay = ("--federation.asynchronous.replay", "run/arrivals.jsonl")
        main(["fit", "--config", "config.yaml", "--trainer.default_root_dir", "replayed", *ASYNCHRONOUS, *replay])
        assert same_bits(weights(Path("run")), weights(Path("replayed")))
