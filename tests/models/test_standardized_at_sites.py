"""Sites tell the sums of their inputs only as their policy says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sites_over_bytes import (
    NAMES,
    SERVERS,
    TOLD,
    configuration,
    federate,
    prepare,
    refused,
    same_bits,
    scaled,
    simulate,
    start_site,
)

SUMS = {"tells": ["examples", "steps", "loss", "statistics"]}
NO_SUMS = [{}, {"tells": None, "update": {"noise": {"least": 0.5}}}]


@pytest.mark.slow
def test_sites_that_consent_give_the_bits_of_the_simulation():
    prepare(**SUMS)
    one, other = simulate(scaled(3)), federate(scaled(3))
    assert same_bits(one, other)
    (mean,) = (tensor for name, tensor in one.items() if name.endswith("network.mean"))
    rows = np.concatenate([np.loadtxt(Path(name, "own.csv"), delimiter=",", skiprows=1)[:, :6] for name in NAMES])
    assert np.allclose(mean, rows.mean(0), rtol=1e-6)


@pytest.mark.parametrize("policy", NO_SUMS, ids=["not allowed", "noise is required"])
def test_sites_tell_no_sums_unless_their_policy_says_so(policy):
    prepare(**policy)
    said = refused(scaled())
    assert "but site north does not tell the sums of its inputs. If its staff agrees, they add 'statistics' to" in said
    assert TOLD["north"].moments is None  # the others have more rows
    assert policy or all(info.moments is None for info in TOLD.values())


@pytest.mark.slow
def test_sums_are_not_told_to_a_server_that_does_not_ask():
    prepare(**SUMS)
    federate(configuration())
    assert all(info.moments is None for info in TOLD.values())
    assert not list(Path().rglob("statistics.sha256"))


@pytest.mark.slow
def test_changed_data_are_not_told_again():
    """The difference of two answers is the sum over the rows that changed."""
    prepare(**SUMS)
    federate(scaled())
    federate(scaled(), "again")  # the same answer tells nothing new
    path = Path("south/own.csv")
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    start_site(Path(), "south")
    told = "Site south (client 1): RefusedError: The data of this site have changed since it told the sums of its inputs"
    assert told in refused(scaled(), "changed")
    Path("south/state/statistics.sha256").unlink()
    federate(scaled(), "third")


IMPOSSIBLE = [
    (("3",), ("0",)),
    (("3", "3"), ("0",), ("0",)),
    (("f" * 18,), ("0",), ("0",)),
    (("2",), ("a",), ("1",)),
    (("2",), ("0",), ("-1",)),
    (("2",), ("word",), ("1",)),
    (("2",), ("0",), ("f" * 10**5,)),
]


@pytest.mark.slow
@pytest.mark.parametrize("told", IMPOSSIBLE)
def test_impossible_sums_are_refused(told, monkeypatch):
    prepare(**SUMS)
    own = SERVERS["west"]._data.info
    monkeypatch.setattr(SERVERS["west"]._data, "info", lambda *args: replace(own(*args), moments=told))
    assert "Site west tells impossible moments (" in refused(scaled())
