"""Real processes of Flower over a line that is slow, breaks, and is behind a proxy. Run with ``-m flower``."""

import time
from collections.abc import Callable

import pytest
from federation_demo import wait_for
from flower_processes import MARKS, ended, federated, same_as_simulated, start
from relay import Relay

pytestmark = MARKS
MODEL = 12.3e6
"""Its bytes. SCAFFOLD's control variate travels down in float64, and its change up in float32."""
ARGUMENTS = (
    *("--model.network.hidden", "[1400, 1400]", "--trainer.max_epochs", "1"),
    *("--federation.local.max_epochs", "2", "--federation.strategy", "Scaffold"),
)


@pytest.fixture
def slow(tmp_path):
    """Run two sites, of which the first has a line of 50 Mbit/s."""
    with (
        federated(tmp_path, ["hospital_a", "hospital_b"], rows=400, starts=False) as federation,
        Relay(federation.port, rate=6.25e6) as relay,
    ):
        federation.start_site("hospital_a", relay.port)
        federation.start_site("hospital_b")
        yield federation, relay


def cut_when(relay: Relay, way: str, size: float, seconds: float, alive: Callable[[], bool]) -> None:
    """Cut the line when so many bytes have passed from now on, and return when it is whole."""
    begun = relay.bytes[way]
    wait_for(lambda: relay.bytes[way] > begun + size or not alive(), 240, f"{size:g} bytes {way}")
    relay.cut(seconds)
    while relay.is_cut:
        time.sleep(0.1)


def test_a_line_that_breaks_down_and_up_costs_time_only(slow):
    """The second cut is longer than the time after which Flower gives up a site, with the default settings."""
    federation, relay = slow
    fit = start(federation, "slow", *ARGUMENTS)
    cut_when(relay, "down", 4e6, 2, lambda: fit.poll() is None)
    cut_when(relay, "up", 4e6, 36, lambda: fit.poll() is None)
    assert same_as_simulated(federation, fit, "slow", *ARGUMENTS)
    site = (federation.folder / "hospital_a" / "site.log").read_text()
    assert site.count("Round 0: trained.") == 1
    assert "The server does not answer (" in site
    assert "The server answers again, after " in site
    for way, size in (("down", 3 * MODEL), ("up", 2 * MODEL)):
        assert relay.bytes[way] < size + 2 * 5.3e6  # two pieces were under way, and nothing else travels twice
    assert "failed" not in ended(federation, fit)
