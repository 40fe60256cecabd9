"""Sites tell the sums of their inputs only as their policy says."""

from argparse import Namespace
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from federations import same_bits
from sites_over_bytes import NAMES, SERVERS, TOLD, configuration, prepare, simulate, start_site
from sites_over_bytes import federate as at_sites

from fl_lightning.flower.site import check as site_check


def scaled() -> dict[str, Any]:
    config = configuration()
    inner = config["model"]["init_args"]["network"]
    config["model"]["init_args"]["network"] = {
        "class_path": "Standardized",
        "init_args": {"num_features": 6, "network": inner},
    }
    return config


def refused(config: dict[str, Any], capsys: Any, folder: str = "real") -> str:
    with pytest.raises(SystemExit):
        at_sites(config, folder)
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_sites_that_consent_give_the_bits_of_the_simulation(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, SUMS)
    one, other = simulate(scaled()), at_sites(scaled())
    assert same_bits(one, other)
    (mean,) = (tensor for name, tensor in one.items() if name.endswith("network.mean"))
    rows = np.concatenate([np.loadtxt(tmp_path / name / "own.csv", delimiter=",", skiprows=1)[:, :6] for name in NAMES])
    assert np.allclose(mean, rows.mean(0), rtol=1e-6)


SUMS = {"tells": ["examples", "steps", "loss", "statistics"]}
NO_SUMS = [{}, {"tells": None, "update": {"noise": {"least": 0.5}}}]


@pytest.mark.parametrize("policy", NO_SUMS, ids=["not allowed", "noise is required"])
def test_sites_tell_no_sums_unless_their_policy_says_so(policy, tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch, policy)
    said = refused(scaled(), capsys)
    assert "but site north does not tell the sums of its inputs. If its staff agrees, they add 'statistics' to" in said
    assert TOLD["north"].moments is None  # the others have more rows
    assert policy or all(info.moments is None for info in TOLD.values())


@pytest.mark.slow
def test_sums_are_not_told_to_a_server_that_does_not_ask(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, SUMS)
    at_sites(configuration())
    assert all(info.moments is None for info in TOLD.values())
    assert not list(tmp_path.rglob("statistics.sha256"))


@pytest.mark.slow
def test_changed_data_are_not_told_again(tmp_path, monkeypatch, capsys):
    """The difference of two answers is the sum over the rows that changed."""
    prepare(tmp_path, monkeypatch, SUMS)
    at_sites(scaled())
    at_sites(scaled(), "again")  # the same answer tells nothing new
    path = tmp_path / "south" / "own.csv"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    start_site(tmp_path, "south")
    told = refused(scaled(), capsys, "changed")
    assert (
        "Site south (client 1): RefusedError: The data of this site have changed since it told the sums of its inputs" in told
    )
    (tmp_path / "south" / "state" / "statistics.sha256").unlink()
    at_sites(scaled(), "third")


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
def test_impossible_sums_are_refused(told, tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch, SUMS)
    own = SERVERS["west"]._data.info
    monkeypatch.setattr(SERVERS["west"]._data, "info", lambda *args: replace(own(*args), moments=told))
    assert "Site west tells impossible moments (" in refused(scaled(), capsys)


def test_the_check_of_a_site_says_what_would_leave(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, SUMS)
    said = site_check._data(Namespace(data=str(tmp_path / "north" / "data.yaml"), name="north"))
    assert "; once, to a server that asks, the sums of its inputs and of their squares, by feature; " in said
