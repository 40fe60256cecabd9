"""What server and sites mean by a class, a column, a part and a number is the same, or is refused or said."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sites_over_bytes as net
from asked_site import ask, north, told
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.data.remote import RemoteDatasets
from fl_lightning.data.table_checks import ranges_of, sentinels, unlike_ranges
from fl_lightning.errors import ClientError, ConfigurationError, DataError
from fl_lightning.flower.server.agree import require_claims, require_same
from fl_lightning.messages import ClientInfo
from fl_lightning.types import ClientUpdate

# ---------------------------------------------------------------- classes

ABC = {"0": "a", "1": "b", "2": "c"}


def rename(path: str, names: dict[str, str]) -> None:
    """Write a table with other names of classes; rows of a class without a name go."""
    head, *rows = Path(path).read_text().splitlines()
    kept = [row.rpartition(",") for row in rows]
    Path(path).write_text("\n".join([head, *(f"{row},{names[label]}" for row, _, label in kept if label in names)]) + "\n")


@pytest.mark.slow
def test_sites_whose_classes_are_not_the_servers_are_refused():
    """Accuracy was 0.326 and 0.000 instead of 1: the same number meant another class, without a word."""
    net.prepare(start=False)
    for name, classes in zip(net.NAMES, ({"1": "b", "2": "c"}, {**ABC, "2": "tumour"}, ABC), strict=True):
        rename(f"{name}/own.csv", classes)
    for path in ("few.csv", "test.csv"):
        rename(path, ABC)
    net.restart()
    found = net.refused(net.configuration())
    assert "north, south and the server have different classes, so the same number would not mean the same." in found
    assert "The server's are a, b, c. Set 'classes' of all to one list." in found
    assert not net.TOLD  # nothing of what was refused is remembered


@pytest.mark.slow
def test_a_site_and_the_servers_set_may_lack_a_class_that_the_setting_names():
    """The same bits as the simulation of the same files, in which one client lacks a class."""
    net.prepare(start=False)
    classes = ["a", "b", "c"]
    for name in net.NAMES:
        for path in (f"{name}/own.csv", f"all/{name}.csv"):
            rename(path, ABC if name != "south" else {"1": "b", "2": "c"})
        net.restart(name, datamodule=net.table(f"{name}/own.csv", classes=classes))
    rename("few.csv", ABC)
    rename("test.csv", {"0": "a", "1": "b"})
    config = net.configuration(strategy="AdaFed")
    config["data"]["datamodule"]["init_args"]["classes"] = classes
    assert net.equal(config)


def test_what_sites_mean_is_compared_with_the_server_or_with_each_other():
    schemas = [ClientInfo("a", 1), *(ClientInfo(name, 1, schema=digest) for name, digest in ("bx", "cx", "dy"))]
    columns = [ClientInfo("a", 1), *(ClientInfo(name, 1, digests=("", digest)) for name, digest in ("bx", "cx", "dy"))]
    for alike, server in ((schemas[:3], ""), (schemas[:1], ""), (schemas[1:3], "x"), (columns[:3], "")):
        require_same(alike, server)
    for infos, server, words in (
        (schemas, "", r"^d and b have different schemas"),
        (schemas[:3], "x", r"^a and the server have different schemas \(or none\)"),
        (schemas, "y", r"^a, b, c and the server have"),
        (columns, "", r"^d and b have different columns, so .* Give all one list"),
        (
            [ClientInfo(name, 1, digests=(name, "")) for name in "ab"],
            "",
            r"^b and a .* classes, .* Set 'classes' of all to",
        ),
    ):
        with pytest.raises(ConfigurationError, match=words):
            require_same(infos, server)


# ---------------------------------------------------------------- parts, and what a server must bring


@pytest.mark.slow
def test_held_out_shares_give_the_bits_of_the_simulation():
    """As data.yaml and the configuration write them; the weights differed by up to 0.05."""
    net.prepare()
    shares = {"client_validation": 0.1, "client_test": 0.2}
    net.restart(**shares)
    config = net.configuration(strategy="FedLoss", client_evaluation={"every_n_rounds": 1, "metric": "val_accuracy"})
    config["data"] |= shares
    assert net.equal(config)
    assert [net.TOLD[name].num_test for name in net.NAMES] == [5, 7, 10]


def test_a_seed_of_the_owners_draws_other_rows():
    north()
    drawn = []
    for seed in (0, 0, 1):
        data = net.restart("north", client_test=0.25, seed=seed)._data
        data.take_number(0)
        drawn.append(data.whole.splits.test[0].tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_server_cannot_draw_other_parts_by_another_number():
    """With sums over parts drawn by 75 seeds, a server had learned 60 of 60 rows."""
    north()
    assert not told(ask(net.restart("north", client_test=0.25), "describe", client=0))
    site = net.restart("north")  # a restart does not help
    said = told(ask(site, "describe", client=1))
    assert "calls this site client 1, which was not its number. If that is right, the site's staff delete" in said
    for wrong in (-1, None, "1", True):
        assert "does not give this site a number" in told(ask(site, "describe", client=wrong))


@pytest.mark.slow
def test_a_server_needs_neither_rows_of_its_own_nor_a_partitioner():
    net.prepare()
    config = net.configuration()
    expected = net.simulate(config)
    del config["data"]["datamodule"]["init_args"]["path"], config["data"]["partitioner"]
    assert net.same_bits(expected, net.simulate(config, "real", *net.POOL))


# ---------------------------------------------------------------- odd numbers


@given(st.floats(0.2, 5.0), st.integers(0, 3))
def test_ranges_that_differ_by_chance_are_not_named(factor, seed):
    draw = np.random.default_rng(seed)
    clients = {name: ranges_of(draw.normal(size=(50, 3)) * [1, 100, 1e-3]) for name in "abcd"}
    assert unlike_ranges(None, clients) == []
    spoilt = clients | {"d": ranges_of(draw.normal(size=(50, 3)) * [1, 100 * 88, 1e-3])}
    (said,) = unlike_ranges(("x", "y", "z"), spoilt)
    assert "'y'" in said
    assert unlike_ranges(None, {"a": clients["a"]}) == []
    assert unlike_ranges(None, {"a": clients["a"], "b": ranges_of(np.ones((3, 2)) * factor)}) == []


def test_numbers_that_stand_for_missing_values_are_named():
    values = np.random.default_rng(0).uniform(20, 90, size=(100, 3))
    values[3:7, 1] = -9999
    values[:, 2] = np.where(values[:, 2] > 50, 99.0, -99.0)  # a feature of its own right
    (said,) = sentinels(("age", "dose", "sign"), values)
    assert said.startswith("The column 'dose' has -9999 in 4 of 100 rows, and otherwise 20")
    assert sentinels(("age",), np.full((5, 1), -999.0)) == []


# ---------------------------------------------------------------- claims


def claiming(name: str, **claims: Any) -> None:
    """Let a site claim other numbers in its description and its updates."""
    data = net.SERVERS[name]._data
    honest = data.info
    data.info = lambda *args: replace(honest(*args), num_examples=claims["num_examples"])  # type: ignore[method-assign]
    net.lying(name, lambda one: replace(one, **claims) if isinstance(one, ClientUpdate) else one)


def test_a_claim_takes_no_memory():
    """2^39 examples ended the server in an allocation of 4 TB, and again at every start; more than 2^36 are refused."""
    data = RemoteDatasets([ClientInfo("a", 2**35, num_test=2**34), ClientInfo("b", 30)])
    assert data.splits.training.sizes.tolist() == [2**35, 30]
    assert data.splits.training[0].numel() == 2**35
    assert data.splits.training.digest() != RemoteDatasets([ClientInfo("a", 2**35 - 1)]).splits.training.digest()
    with pytest.raises(DataError, match="are not known here"):
        data.splits.training.owners()
    net.prepare()
    claiming("west", num_examples=2**35)
    with pytest.warns(UserWarning, match=r"Site west has 100.0% of the change of round 0"):
        net.federate(net.configuration(1))


CLAIMS: dict[str, Any] = {
    "FedAvg": {"num_examples": 10**6},
    "FedNova": {"num_examples": 48, "normalizer": 1e-6},
    "QFedAvg": {"num_examples": 48, "global_score": 1e6},
}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", CLAIMS)
def test_a_site_that_dominates_a_round_is_named_or_refused(strategy):
    net.prepare()
    claiming("west", **CLAIMS[strategy])
    config = net.configuration(1, strategy=strategy)
    with pytest.warns(UserWarning, match=r"Site west has 9\d\.\d%|Site west has 100\.0%"):
        net.federate(config)
    said = net.refused(config, "limited", "--federation.pool.max_share", "0.8")
    assert "of the change of round 0, but 'federation.pool.max_share' is 0.8." in said


def test_claims_above_the_servers_limit_are_refused():
    net.prepare()
    said = net.refused(net.configuration(), "real", "--federation.pool.max_examples", "40")
    assert "than 'federation.pool.max_examples' allows: west (48)." in said
    infos = [ClientInfo("a", 50), ClientInfo("b", 60)]
    require_claims(infos, {"a": 50})
    require_claims(infos, None)
    with pytest.raises(ConfigurationError, match=r"allows: b \(60\)"):
        require_claims(infos, {"b": 59})


def test_the_share_of_a_round_that_a_site_may_have():
    pool = net.BytesSites(max_share=0.6)
    pool._infos = (ClientInfo("a", 1), ClientInfo("b", 1), ClientInfo("c", 1))
    pool.review(0, {0: 0.4, 1: 0.3, 2: 0.3})
    with pytest.warns(UserWarning, match="Site b has 55.0%"):
        pool.review(0, {0: 0.4, 1: 0.55, 2: 0.05})
    with pytest.raises(ClientError, match=r"Site c has 70\.0% of the change of round 4"):
        pool.review(4, {0: 0.2, 1: 0.1, 2: 0.7})
