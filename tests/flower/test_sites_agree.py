"""What server and sites mean by a class, a column, a part and a number is the same, or is refused or said."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from sites_over_bytes import (
    HOOK,
    NAMES,
    SERVERS,
    TOLD,
    BytesSites,
    configuration,
    federate,
    prepare,
    same_bits,
    simulate,
    start_site,
    table,
)

from fl_lightning.cli.federation_cli import main
from fl_lightning.data.ranges import ranges_of, sentinels, unlike_ranges
from fl_lightning.data.remote import RemoteDatasets
from fl_lightning.errors import ClientError, ConfigurationError, DataError
from fl_lightning.flower import envelope
from fl_lightning.flower.checks import compared, require_claims
from fl_lightning.flower.policy import Policy
from fl_lightning.messages import ClientInfo, NameComparison
from fl_lightning.types import ClientUpdate


def one_line(capsys: Any) -> str:
    return " ".join(capsys.readouterr().err.split())


def rename(path: Path, names: dict[str, str]) -> None:
    """Write a table with other names of classes; rows of a class without a name go."""
    head, *rows = path.read_text().splitlines()
    kept = [row.rpartition(",") for row in rows]
    path.write_text("\n".join([head, *(f"{row},{names[label]}" for row, _, label in kept if label in names)]) + "\n")


def settings_of(tmp_path: Path, name: str, **more: Any) -> None:
    """Change a site's data.yaml and start it again."""
    path = tmp_path / name / "data.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **more}))
    start_site(tmp_path, name)


# ---------------------------------------------------------------- classes

ABC = {"0": "a", "1": "b", "2": "c"}


@pytest.mark.parametrize(
    ("site", "server", "said"),
    [
        ({"1": "b", "2": "c"}, ABC, "lacks the server's classes 'a'."),
        (ABC, {"1": "b", "2": "c"}, "has 1 classes that the server lacks."),
        (
            {"0": "control", "1": "tumour"},
            {"0": "healthy", "1": "cancer"},
            "lacks the server's classes 'cancer', 'healthy' and has 2 classes that the server lacks.",
        ),
    ],
)
def test_sites_whose_classes_are_not_the_servers_are_refused(site, server, said, tmp_path, monkeypatch, capsys):
    """Accuracy was 0.326, 0.000 and 0.000 instead of 1: the same number meant another class, without a word."""
    prepare(tmp_path, monkeypatch)
    for name in NAMES:
        rename(tmp_path / name / "own.csv", site)
        start_site(tmp_path, name)
    for path in ("few.csv", "test.csv"):
        rename(tmp_path / path, server)
    with pytest.raises(SystemExit):
        federate(configuration())
    told = one_line(capsys)
    for name in NAMES:
        assert f"Site {name} {said}" in told
    assert "Set 'classes' of the site's datamodule to the server's list" in told
    assert "control" not in told  # a name that the server did not send
    assert "tumour" not in told
    assert not TOLD  # nothing of what was refused is remembered


def test_a_site_and_the_servers_set_may_lack_a_class_that_the_setting_names(tmp_path, monkeypatch):
    """The same bits as the simulation of the same files, in which one client lacks a class."""
    prepare(tmp_path, monkeypatch)
    classes = ["a", "b", "c"]
    for name in NAMES:
        own = ABC if name != "south" else {"1": "b", "2": "c"}
        rename(tmp_path / name / "own.csv", own)
        rename(tmp_path / "all" / f"{name}.csv", own)
        datamodule = table(str(tmp_path / name / "own.csv"), classes=classes)
        settings_of(tmp_path, name, datamodule=datamodule)
    rename(tmp_path / "few.csv", ABC)
    rename(tmp_path / "test.csv", {"0": "a", "1": "b"})
    config = configuration(strategy="AdaFed")
    config["data"]["datamodule"]["init_args"]["classes"] = classes
    assert same_bits(simulate(config), federate(config))


def folder_of(path: str, name: str, **more: Any) -> dict[str, Any]:
    return {"class_path": "ImageFolderDataModule", "init_args": {"root": path, "channels": 3, "batch_size": 4, **more}}


def test_images_by_folder_are_compared_too(tmp_path, monkeypatch, capsys):
    from small_images import paint

    prepare(tmp_path, monkeypatch)
    for name in NAMES:
        for label in ("b", "c"):
            paint(tmp_path / name / "images" / label, 4, size=8)
        settings_of(tmp_path, name, datamodule=folder_of(str(tmp_path / name / "images"), name))
    for part, labels in (("train", "abc"), ("test", "abc")):
        for label in labels:
            paint(tmp_path / "server" / part / label, 2, size=8)
    config = configuration()
    network = {"class_path": "fl_lightning.MLP", "init_args": {"in_features": 192, "hidden": [4], "num_classes": 3}}
    config["model"]["init_args"]["network"] = network
    config["data"]["datamodule"] = folder_of("server", "server")
    Path("config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(SystemExit):
        main(["fit", "--config", "config.yaml", "--federation.pool", "sites_over_bytes.BytesSites"])
    assert "Site north lacks the server's classes 'a'." in one_line(capsys)


def test_a_model_with_fewer_classes_than_the_data_is_refused_before_sites_are_asked(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    config = configuration()
    config["model"]["init_args"]["num_classes"] = 2
    with pytest.raises(SystemExit):
        federate(config)
    assert "The data have 3 classes ('0', '1', '2'), but 'num_classes' of the model is 2." in one_line(capsys)
    assert not (tmp_path / "north" / "state" / "audit.jsonl").exists()


names = st.lists(st.sampled_from("abcdef"), unique=True, max_size=6)


@given(names, names)
def test_a_comparison_repeats_only_names_that_the_server_sent(own, servers):
    found = compared(own, servers)
    assert found is not None
    assert set(found.missing) == set(servers) - set(own)
    assert found.further == len(set(own) - set(servers))
    assert {*found.missing, found.moved} <= {"", *servers}
    assert found.equal == (own == servers)
    assert compared(None, servers) is compared(own, None) is None


def test_a_digest_of_names_is_told_only_to_a_server_without_names(tmp_path, monkeypatch):
    """Names that can be guessed, such as those of diseases, could be found from it."""
    prepare(tmp_path, monkeypatch)
    data = SERVERS["west"]._data
    assert all(data.info("west", Policy()).digests)
    assert data.info("west", Policy(), ("0", "1"), None).digests[0] == ""
    assert data.info("west", Policy(), None, ("a", "b")).digests[1] == ""


def test_a_site_that_tells_other_names_is_refused(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    told = SERVERS["west"]._data.info

    def hostile(*args: Any) -> ClientInfo:
        from dataclasses import replace

        return replace(told(*args), features=NameComparison(("\x1b[2Jsecret",)))

    monkeypatch.setattr(SERVERS["west"]._data, "info", hostile)
    with pytest.raises(SystemExit):
        federate(configuration())
    error = one_line(capsys)
    assert "Site west tells names of features that the server does not have." in error
    assert "secret" not in error


# ---------------------------------------------------------------- parts, and what a server must bring

SHARES = {"client_validation": 0.1, "client_test": 0.2}


def test_held_out_shares_give_the_bits_of_the_simulation(tmp_path, monkeypatch):
    """As data.yaml and the configuration write them; the weights differed by up to 0.05."""
    prepare(tmp_path, monkeypatch)
    for name in NAMES:
        settings_of(tmp_path, name, **SHARES)
    config = configuration(strategy="FedLoss", client_evaluation={"every_n_rounds": 1, "metric": "val_accuracy"})
    config["data"] |= SHARES
    assert same_bits(simulate(config), federate(config))
    assert [TOLD[name].num_test for name in NAMES] == [5, 7, 10]


def test_a_seed_of_the_owners_draws_other_rows(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    drawn = []
    for seed in (0, 0, 1):
        settings_of(tmp_path, "north", client_test=0.25, seed=seed)
        SERVERS["north"]._data.number = 0
        drawn.append(SERVERS["north"]._data.whole.splits.test[0].tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_server_cannot_draw_other_parts_by_another_number(tmp_path, monkeypatch):
    """With sums over parts drawn by 75 seeds, a server had learned 60 of 60 rows."""
    prepare(tmp_path, monkeypatch)
    settings_of(tmp_path, "north", client_test=0.25)

    def describe(client: Any) -> dict[str, Any]:
        site = SERVERS["north"]
        return dict(envelope.opened(site.answer({"order": envelope.request("describe", client=client)}), ("reply",)))

    assert "error" not in describe(0)
    settings_of(tmp_path, "north", client_test=0.25)  # a restart does not help
    told = str(describe(1)["error"])
    assert "calls this site client 1, but it has been client 0" in told
    assert "fl-lightning site approve --name north --number 1" in told
    for wrong in (-1, None, "1", True):
        assert "does not give this site a number" in str(describe(wrong)["error"])


def test_a_server_needs_neither_rows_of_its_own_nor_a_partitioner(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    config = configuration()
    expected = simulate(config)
    own = config["data"]["datamodule"]["init_args"]
    del own["path"], config["data"]["partitioner"]
    Path("config.yaml").write_text(yaml.safe_dump(config))
    pool = ["--federation.pool", "sites_over_bytes.BytesSites"]
    main(["fit", "--config", "config.yaml", *pool, "--trainer.default_root_dir", "real"])
    from sites_over_bytes import weights

    assert same_bits(expected, weights(Path("real")))


def test_without_sites_rows_and_partitioner_are_needed(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    config = configuration()
    del config["data"]["partitioner"]
    with pytest.raises(SystemExit):
        simulate(config)
    assert "'data.partitioner' is missing." in one_line(capsys)
    config = configuration()
    del config["data"]["datamodule"]["init_args"]["path"]
    with pytest.raises(SystemExit):
        simulate(config)
    assert "'data.datamodule.path' is null, so there are no rows to train on." in one_line(capsys)


def test_a_server_that_scales_by_its_own_rows_is_refused(tmp_path, monkeypatch, capsys):
    """0.712 where all rows are pooled, 0.559 where the two sides scale differently."""
    prepare(tmp_path, monkeypatch)
    config = configuration()
    config["data"]["datamodule"]["init_args"]["standardize"] = True
    with pytest.raises(SystemExit):
        federate(config)
    assert "'data.datamodule.standardize' is true, but each site would scale by its own rows" in one_line(capsys)


# ---------------------------------------------------------------- odd numbers


def test_a_site_with_another_unit_is_named_if_sites_tell_ranges(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, {"ranges": True})
    rows = [row.split(",") for row in (tmp_path / "west" / "own.csv").read_text().splitlines()]
    changed = [rows[0], *([row[0], f"{float(row[1]) * 88:g}", *row[2:]] for row in rows[1:])]
    (tmp_path / "west" / "own.csv").write_text("\n".join(map(",".join, changed)) + "\n")
    start_site(tmp_path, "west")
    with pytest.warns(UserWarning, match=r"The feature 'pixel_1' is from .* at site west, but from .* at the others"):
        federate(configuration())
    assert all(len(f"{abs(value):e}".split("e")[0].rstrip("0").rstrip(".")) <= 3 for value in TOLD["west"].ranges[1])


def test_ranges_are_not_told_without_consent(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    federate(configuration())
    assert all(TOLD[name].ranges is None for name in NAMES)


@settings(max_examples=50)
@given(st.floats(0.2, 5.0), st.integers(0, 3))
def test_ranges_that_differ_by_chance_are_not_named(factor, seed):
    draw = np.random.default_rng(seed)
    clients = {name: ranges_of(draw.normal(size=(50, 3)) * [1, 100, 1e-3]) for name in "abcd"}
    assert unlike_ranges(None, clients) == []
    spoilt = clients | {"d": ranges_of(draw.normal(size=(50, 3)) * [1, 100 * 88, 1e-3])}
    assert len(unlike_ranges(("x", "y", "z"), spoilt)) == 1
    assert "'y'" in unlike_ranges(("x", "y", "z"), spoilt)[0]
    assert unlike_ranges(None, {"a": clients["a"]}) == []
    assert unlike_ranges(None, {"a": clients["a"], "b": ranges_of(np.ones((3, 2)) * factor)}) == []


def test_numbers_that_stand_for_missing_values_are_named():
    values = np.random.default_rng(0).uniform(20, 90, size=(100, 3))
    values[3:7, 1] = -9999
    values[:, 2] = np.where(values[:, 2] > 50, 99.0, -99.0)  # a feature of its own right
    (told,) = sentinels(("age", "dose", "sign"), values)
    assert told.startswith("The column 'dose' has -9999 in 4 of 100 rows, and otherwise 20")
    assert sentinels(("age",), np.full((5, 1), -999.0)) == []


def test_all_weights_of_0_are_said(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    metric = {"class_path": "AdaFed", "init_args": {"metric": "val_f1_macro", "power": 2}}
    config = configuration(strategy=metric)
    rows = (tmp_path / "test.csv").read_text().splitlines()
    (tmp_path / "test.csv").write_text("\n".join(rows[:3]) + "\n")
    config["trainer"]["max_epochs"] = 1
    monkeypatch.setattr("fl_lightning.server.evaluators.Evaluators.score", lambda *args, **kwargs: 0.0)
    with pytest.warns(UserWarning, match="AdaFed gave all clients of a round the weight 0, so their plain average was used"):
        federate(config)


def test_a_resume_with_fewer_rounds_is_said(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    config = configuration()
    simulate(config)
    with pytest.warns(UserWarning, match=r"Nothing was trained: the checkpoint has 3 rounds, and 'trainer.max_epochs' is 2"):
        simulate(config, "simulated", "--ckpt_path", "last", "--trainer.max_epochs", "2")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Nothing was trained")
        simulate(config, "simulated", "--ckpt_path", "last", "--trainer.max_epochs", "4")


# ---------------------------------------------------------------- claims


def claiming(monkeypatch: Any, name: str, **claims: Any) -> None:
    """Let a site claim other numbers in its description and its updates."""
    from dataclasses import replace

    told = SERVERS[name]._data.info
    monkeypatch.setattr(SERVERS[name]._data, "info", lambda *args: replace(told(*args), num_examples=claims["num_examples"]))

    def lie(site: str, parts: Any, ask: Any) -> bytes:
        reply = envelope.opened(ask(), ("reply",))
        reports = reply.get("replies", ())
        if site != name or not reports or not isinstance(reports[0], ClientUpdate):
            return envelope.reply(**{key: value for key, value in reply.items() if key not in ("kind", "version")})
        return envelope.reply(replies=[replace(reports[0], **claims)], releases={})

    monkeypatch.setitem(HOOK, "hook", lie)


def test_a_claim_takes_no_memory(tmp_path, monkeypatch):
    """2^39 examples ended the server in an allocation of 4 TB, and again at every start; more than 2^36 are refused."""
    data = RemoteDatasets([ClientInfo("a", 2**35, num_test=2**34), ClientInfo("b", 30)])
    assert data.splits.training.sizes.tolist() == [2**35, 30]
    assert data.splits.training[0].numel() == 2**35
    assert data.splits.training.digest() != RemoteDatasets([ClientInfo("a", 2**35 - 1)]).splits.training.digest()
    with pytest.raises(DataError, match="are at their sites"):
        data.splits.training.owners()
    prepare(tmp_path, monkeypatch)
    claiming(monkeypatch, "west", num_examples=2**35)
    with pytest.warns(UserWarning, match=r"Site west has 100.0% of the change of round 0"):
        federate(configuration())


@pytest.mark.parametrize(
    ("claims", "federation"),
    [
        ({"num_examples": 10**6}, {}),
        ({"num_examples": 48, "normalizer": 1e-6}, {"strategy": "FedNova"}),
        ({"num_examples": 48, "global_score": 1e6}, {"strategy": "QFedAvg"}),
    ],
    ids=["examples", "normalizer", "loss"],
)
def test_a_site_that_dominates_a_round_is_named_or_refused(claims, federation, tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    claiming(monkeypatch, "west", **claims)
    config = configuration(**federation)
    config["trainer"]["max_epochs"] = 1
    with pytest.warns(UserWarning, match=r"Site west has 9\d\.\d%|Site west has 100\.0%"):
        federate(config)
    with pytest.raises(SystemExit):
        federate(config, "limited", "--federation.pool.max_share", "0.8")
    assert "of the change of round 0, but 'federation.pool.max_share' is 0.8." in one_line(capsys)


def test_claims_above_the_servers_limit_are_refused(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    with pytest.raises(SystemExit):
        federate(configuration(), "real", "--federation.pool.max_examples", "40")
    assert "than 'federation.pool.max_examples' allows: west (48)." in one_line(capsys)
    infos = [ClientInfo("a", 50), ClientInfo("b", 60)]
    require_claims(infos, {"a": 50})
    require_claims(infos, None)
    with pytest.raises(ConfigurationError, match=r"allows: b \(60\)"):
        require_claims(infos, {"b": 59})
    for wrong in ({"max_examples": 0}, {"max_examples": {"a": 0}}, {"max_share": 0.0}, {"max_share": 1.5}):
        with pytest.raises(ConfigurationError, match=rf"'federation.pool.{next(iter(wrong))}' must be"):
            BytesSites(**wrong)


def test_the_share_of_a_round_that_a_site_may_have():
    pool = BytesSites(max_share=0.6)
    pool._infos = (ClientInfo("a", 1), ClientInfo("b", 1), ClientInfo("c", 1))
    pool.review(0, {0: 0.4, 1: 0.3, 2: 0.3})
    with pytest.warns(UserWarning, match="Site b has 55.0%"):
        pool.review(0, {0: 0.4, 1: 0.55, 2: 0.05})
    with pytest.raises(ClientError, match=r"Site c has 70\.0% of the change of round 4"):
        pool.review(4, {0: 0.2, 1: 0.1, 2: 0.7})
