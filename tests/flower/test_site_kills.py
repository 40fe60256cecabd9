"""A site that is killed anywhere: no number leaves without a line in its account, and its budget holds."""

import json
import signal
import sys
from pathlib import Path

import killed_site
import pytest
from killed_site import AFFORDED, PLACES
from launching import launch

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")]

NOT_PAID_BEFORE = set(list(PLACES)[: list(PLACES).index("before the line is synced")])
"""The places at which the line of the order is not whole."""
ANSWERED = {"after the state names the reply", "before the reply leaves"}
"""The places after which the order's reply is in the store."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    launch([str(Path(killed_site.__file__)), "--folder", str(folder)], 600, folder)
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_at_any_place_loses_no_charge_and_overspends_nothing(place, found):
    accounts, witness = found[place]["accounts"], found[place]["witness"]
    assert [one["statuses"] for one in accounts] == [[-signal.SIGKILL], [0], [0], [0, 0]]
    after_kill, after_replay, after_other, at_end = (one["lines"] for one in accounts)
    assert len(after_kill) == (place not in NOT_PAID_BEFORE)
    assert len(after_replay) == len(after_kill) + (place not in ANSWERED)
    assert len(after_other) == len(after_replay) + 1
    assert len(at_end) == AFFORDED
    for before, after in ((after_kill, after_replay), (after_replay, after_other), (after_other, at_end)):
        assert after[: len(before)] == before
    trained = [one["trains"] for one in witness if "trains" in one]
    assert all(lines > number for number, lines in enumerate(trained))
    left = [one["leaves"] for one in witness if "leaves" in one]
    assert len(left) == len(set(left)) == 2 + AFFORDED - len(after_other)
    refused = [one["refused"] for one in witness if "refused" in one]
    assert len(refused) == 2 - (AFFORDED - len(after_other))
    assert all("above its 'policy.update.noise.budget.max_epsilon'" in text for text in refused)
