"""Real processes of Flower that die, or are stopped, in the middle of a round. Run with ``-m flower``."""

import contextlib
import os
import signal
import time

import flower_processes
from federation_demo import wait_for
from flower_processes import (
    LONG,
    MARKS,
    descendants,
    ended,
    in_a_round,
    kill,
    resumed_as_simulated,
    same_as_simulated,
    start,
    told,
)

pytestmark = MARKS
running, federation = flower_processes.running, flower_processes.federation  # the fixtures


def test_the_server_dies_and_resumes(federation):
    arguments = ("--federation.strategy", "Scaffold")
    fit = in_a_round(federation, "server dies", *arguments)
    kill(fit)
    assert resumed_as_simulated(federation, "server dies", *LONG, *arguments)


def test_a_site_that_restarts_trains_the_round(federation):
    """The SuperLink refuses it until it has given up the killed one, and then delivers the order again."""
    arguments = ("--federation.strategy", "Scaffold")
    fit = in_a_round(federation, "site restarts", *arguments)
    kill(federation.sites["hospital_b"])
    federation.start_site("hospital_b")
    assert same_as_simulated(federation, fit, "site restarts", *LONG, *arguments)


def test_a_worker_that_stands_still_is_noticed_without_a_deadline(federation):
    """It gives no sign of life, unlike one that trains for long; the round continues without it, or the site ends it.

    The site ends it if it had no order when it was stopped, which a loaded machine makes possible.
    """
    ended_by_site = told(federation.folder / "hospital_b" / "site.log", "gives no sign of life")
    fit = in_a_round(federation, "stands still", "--federation.faults.policy", "skip")
    worker = descendants(federation.sites["hospital_b"].pid)["worker"]
    os.kill(worker, signal.SIGSTOP)
    try:
        assert "continues without client hospital_b" in ended(federation, fit) or ended_by_site()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def test_a_worker_that_stands_still_between_rounds_is_started_again(federation):
    """It has taken no order, so Flower waits for it; the site ends it, and the next worker takes the order."""
    done = told(federation.folder / "hospital_a" / "site.log", "Round 0: trained.")  # the smallest: it waits for the others
    fit = start(federation, "waits still", *LONG)
    wait_for(lambda: done() or fit.poll() is not None, federation.life, "round 0")
    time.sleep(0.3)
    os.kill(descendants(federation.sites["hospital_a"].pid)["worker"], signal.SIGSTOP)
    assert same_as_simulated(federation, fit, "waits still", *LONG)


def test_a_site_dies_and_returns(federation):
    """It trains again, in the same round or after rounds without it; no other site is touched."""
    fit = in_a_round(federation, "site dies", "--federation.faults.policy", "skip", "--trainer.max_epochs", "50")
    others = {name: descendants(process.pid) for name, process in federation.sites.items() if name != "hospital_c"}
    kill(federation.sites["hospital_c"])
    after = told(federation.folder / "hospital_c" / "site.log", "trained.")
    federation.start_site("hospital_c")
    wait_for(after, 300, "the site to train again")  # the SuperLink refuses it until it has given up the killed one
    assert others == {name: descendants(process.pid) for name, process in federation.sites.items() if name != "hospital_c"}
    fit.send_signal(signal.SIGINT)
    assert fit.wait(60) == 130


def test_the_superlink_dies_and_the_run_resumes(federation):
    arguments = ("--federation.strategy", "Scaffold")
    fit = in_a_round(federation, "link dies", *arguments)
    kill(federation.server)
    federation.serve()
    if fit.wait(federation.life):
        assert resumed_as_simulated(federation, "link dies", *LONG, *arguments)
    else:
        assert same_as_simulated(federation, fit, "link dies", *LONG, *arguments)
