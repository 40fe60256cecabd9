"""Sites get the same YAML as a simulation, as values and bytes, and give the same bits."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accountants import gaussian_epsilon
from sites_over_bytes import (
    ABSENT,
    HOOK,
    NAMES,
    REGISTERED,
    SERVERS,
    TOLD,
    BytesSites,
    configuration,
    federate,
    give_parts,
    prepare,
    same_bits,
    simulate,
    start_site,
)

import fl_lightning
from fl_lightning.cli.commands.export import main as export_main
from fl_lightning.errors import ConfigurationError
from fl_lightning.flower import envelope, site_check
from fl_lightning.flower.checks import require_names
from fl_lightning.flower.policy import Policy
from fl_lightning.messages import ClientInfo

ADAPTIVE = {"class_path": "F1WeightedCrossEntropy", "init_args": {"num_classes": 3, "epsilon": 0.1}}

TOP_K = {"class_path": "TopK", "init_args": {"share": 0.3}}
HALF = {"class_path": "HalfPrecision", "init_args": {"dtype": "float16"}}
QUANTIZE = {"class_path": "Quantize", "init_args": {"bits": 5, "block": 7}}

LARGER = {"class_path": "fl_lightning.MLP", "init_args": {"in_features": 6, "hidden": [9], "num_classes": 3}}

CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "FedAvg": ({}, "CrossEntropy"),
    "AdaFed with its loss": ({"strategy": "AdaFed"}, ADAPTIVE),
    "FedAvgM": ({"strategy": "FedAvgM"}, "CrossEntropy"),
    "FedProx": ({"local": {"threads": 1, "proximal_mu": 0.3, "max_epochs": 2}}, "CrossEntropy"),
    "FedNova": ({"strategy": "FedNova"}, "CrossEntropy"),
    "SCAFFOLD, 2 of 3 sites": ({"strategy": "Scaffold", "clients_per_round": 2}, "CrossEntropy"),
    "FedMedian": ({"strategy": "FedMedian"}, "CrossEntropy"),
    "Krum": ({"strategy": {"class_path": "Krum", "init_args": {"attackers": 0}}}, "CrossEntropy"),
    "Fed-Cyclic": ({"route": "FedCyclic"}, "CrossEntropy"),
    "RingFed": ({"route": {"class_path": "RingFed", "init_args": {"periods": 2}}}, "CrossEntropy"),
    "torch's loss and Adam": ({"server_optimizer": {"class_path": "torch.optim.Adam"}}, "torch.nn.CrossEntropyLoss"),
    "fabric": ({"local": {"threads": 1, "engine": "fabric"}}, "CrossEntropy"),
    "compressed": ({"transforms": [TOP_K, QUANTIZE]}, "CrossEntropy"),
    "clipped": ({"transforms": [{"class_path": "ClipUpdate", "init_args": {"max_norm": 0.05}}]}, "CrossEntropy"),
}


EVERY = {"every_n_rounds": 1, "metric": "val_accuracy"}
OWN: dict[str, dict[str, Any]] = {
    "personal": {"personal": [{"names": "layers.4.*"}]},
    "FedRep": {"personal": [{"names": "layers.4.*"}], "strategy": "FedRep", "local": {"threads": 1, "max_epochs": 2}},
    "Ditto": {"strategy": "Ditto"},
}


@pytest.fixture(autouse=True)
def _no_hook():
    yield
    HOOK.clear()


@pytest.mark.parametrize("case", CASES)
def test_sites_give_the_bits_of_the_simulation(case, tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    federation, loss = CASES[case]
    config = configuration(**federation)
    config["model"]["init_args"]["loss"] = loss
    config["trainer"]["max_epochs"] = 2
    assert same_bits(simulate(config), federate(config))


def test_scores_and_evaluations_at_the_sites(tmp_path, monkeypatch):
    """FedLoss weighs by losses on the sites' own validation parts; the global model is evaluated on their test parts."""
    prepare(tmp_path, monkeypatch)
    evaluation = {"every_n_rounds": 1, "metric": "val_loss", "compare_alone": True}
    config = configuration(strategy={"class_path": "FedLoss", "init_args": {"loss": "val_loss"}}, client_evaluation=evaluation)
    shares = ("--data.client_validation", "0.25", "--data.client_test", "0.25")
    here = simulate(config, "simulated", *shares)
    give_parts(tmp_path)
    assert same_bits(here, federate(config))
    tables = [(tmp_path / folder / "client_comparison.csv").read_text().splitlines() for folder in ("simulated", "real")]
    numbers = [[line.split(",")[1:] for line in lines[1:]] for lines in tables]
    assert numbers[0] == numbers[1]
    assert len(numbers[0]) >= 3


def test_streams_at_the_sites_give_the_bits_of_the_simulation(tmp_path, monkeypatch):
    """The sites do not know how many rows they have; the updates tell, and weigh by it."""
    prepare(tmp_path, monkeypatch)
    own = {}
    for name in NAMES:
        own[name] = {"class_path": "sites_over_bytes.Streaming", "init_args": {"path": str(tmp_path / name / "own.csv")}}
        (tmp_path / name / "data.yaml").write_text(yaml.safe_dump({"datamodule": own[name], "device": "cpu"}))
        start_site(tmp_path, name)
    real = federate(configuration())
    assert [(TOLD[name].num_examples, TOLD[name].streams) for name in NAMES] == [(1, True)] * 3
    rows = Path("real/client_rounds.csv").read_text().splitlines()
    column = rows[0].split(",").index("examples")
    assert [float(row.split(",")[column]) for row in rows[1:4]] == [24.0, 36.0, 48.0]
    assert same_bits(simulate(configuration() | {"data": {"clients": own}}), real)
    assert SERVERS["west"]._data.info("west", Policy(statistics=True), statistics=True).moments is None
    said = site_check._data(argparse.Namespace(data=tmp_path / "west/data.yaml", name="west", schema=None, folder=None))
    assert said.startswith("the server would learn the name 'west', a stream, whose length it learns in each round; 0 val")


def test_frozen_parts_are_sent_once(tmp_path, monkeypatch):
    """Transfer learning: thawed from round 2 on. A site that starts again gets everything."""
    prepare(tmp_path, monkeypatch)
    config = configuration()
    freeze = {"class_path": "TransferLearning", "init_args": {"parts": ["network.layers.1"], "thaw_after": 3}}
    config["trainer"] |= {"max_epochs": 5, "callbacks": [freeze]}
    whole = simulate(config)
    begun = []

    def restart(name, parts, ask):
        if name == "north" and b'"ClientTask"' in parts["order"]:
            begun.append(name)
            if len(begun) == 3:
                start_site(tmp_path, name)
        return ask()

    HOOK["hook"] = restart
    assert same_bits(whole, federate(config))
    names = {}
    for name in ("north", "west"):
        lines = [json.loads(line) for line in (tmp_path / name / "state" / "audit.jsonl").read_text().splitlines()]
        models = [line["tensors"] for line in lines if line["kind"] == "model"]
        names[name] = [any("network.layers.1.weight" in tensor for tensor in tensors) for tensors in models]
        assert all(any("network.layers.4.weight" in tensor for tensor in tensors) for tensors in models)
    assert names["west"] == [True, False, False, False, True]  # round 3 trains it for the first time, from the value it has
    assert names["north"] == [True, False, False, True, False, True]


def test_central_noise_of_clients_privacy(tmp_path, monkeypatch):
    """The sites clip, and the server adds noise from its own key: with almost none, the weights are the simulation's."""
    pytest.importorskip("dp_accounting")
    prepare(tmp_path, monkeypatch)
    private = {"max_norm": 0.05, "noise_multiplier": 1e-9, "noise": "central"}
    strategy = {"class_path": "FedAvg", "init_args": {"weighting": "uniform"}}
    config = configuration(transforms=[{"class_path": "ClientPrivacy", "init_args": private}], strategy=strategy)
    here, there = simulate(config), federate(config)
    assert all(torch.allclose(here[name], there[name], atol=1e-6) for name in here)
    config["federation"]["transforms"] = []
    free = federate(config, "free")
    assert max(float((free[name] - there[name]).abs().max()) for name in free) > 0.01


def test_sites_get_the_noise_that_was_solved_for_a_target_and_hold_it_to_their_policy(tmp_path, monkeypatch, capsys):
    pytest.importorskip("dp_accounting")
    prepare(tmp_path, monkeypatch)
    privacy = {"max_norm": 0.05, "noise": "local", "target_epsilon": 2.0, "delta": 1e-3}
    config = configuration(transforms=[{"class_path": "ClientPrivacy", "init_args": privacy}])
    federate(config)
    audit = [json.loads(line) for line in (tmp_path / "north/state/audit.jsonl").read_text().splitlines()]
    (settings,) = (json.loads(line["text"])["federation"] for line in audit if "text" in line)
    sent = settings["transforms"][0]["init_args"]
    assert sent["target_epsilon"] is None
    assert 1.98 <= gaussian_epsilon(sent["noise_multiplier"] / 2 / math.sqrt(3), 1e-3) <= 2.0
    (tmp_path / "strict").mkdir()
    prepare(tmp_path / "strict", monkeypatch, {"min_noise": 50.0})
    with pytest.raises(SystemExit):
        federate(config)
    assert "policy requires 50" in capsys.readouterr().err


SENT = {  # 53 parameters, 16 of which are 30 %
    "TopK": ([TOP_K], {"numbers": ["float32", 16], "positions": ["int32", 16]}),
    "Quantize": ([QUANTIZE], {"numbers": ["uint8", math.ceil(53 * 5 / 8)], "scales": ["float32", math.ceil(53 / 7)]}),
    "both": ([TOP_K, QUANTIZE], {"numbers": ["uint8", 10], "positions": ["int32", 16], "scales": ["float32", 3]}),
    "HalfPrecision": ([{"class_path": "HalfPrecision"}], {"numbers": ["bfloat16", 53]}),
    "TopK, then halves": ([TOP_K, HALF], {"numbers": ["float16", 16], "positions": ["int32", 16]}),
    "quantised, then sparse": ([QUANTIZE, TOP_K], {"numbers": ["float32", 16], "positions": ["int32", 16]}),
}


@pytest.mark.parametrize("case", SENT)
def test_what_transforms_compress_is_sent_compressed(case, tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    transforms, expected = SENT[case]
    config = configuration(transforms=transforms)
    config["trainer"] |= {"max_epochs": 2, "logger": {"class_path": "CSVLogger", "init_args": {"save_dir": "log"}}}
    assert same_bits(simulate(config), federate(config))
    lines = [json.loads(line) for line in (tmp_path / "west" / "state" / "audit.jsonl").read_text().splitlines()]
    sent = [line for line in lines if line["direction"] == "out" and line["tensors"]]
    for line in sent:
        found = {name.partition("compressed.")[2]: told for name, told in line["tensors"].items()}
        assert found == expected | {"rest": ["float32", 0], "counters": ["int64", 0]}
    assert len(sent) == 2


@pytest.mark.parametrize("case", OWN)
def test_personal_parts_and_models_stay_at_the_sites(case, tmp_path, monkeypatch):
    """Weights and evaluations are those of the simulation; no message from a site holds what it keeps."""
    prepare(tmp_path, monkeypatch)
    config = configuration(**OWN[case], client_evaluation=EVERY)
    here = simulate(config, "simulated", "--data.client_validation", "0.25", "--data.client_test", "0.25")
    give_parts(tmp_path)
    assert same_bits(here, federate(config))
    tables = [(tmp_path / folder / "client_evaluation.csv").read_text().splitlines() for folder in ("simulated", "real")]
    numbers = [[line.split(",")[1:] for line in lines[1:]] for lines in tables]
    assert numbers[0] == numbers[1]
    states = torch.load(tmp_path / "real" / "checkpoints" / "last.ckpt", weights_only=True)["callbacks"].values()
    assert next(state["memory"] for state in states if "memory" in state) == {}
    for name in NAMES:  # what a site exports is what the simulation exports for it
        exported = [tmp_path / f"{folder}_{name}.ckpt" for folder in ("simulated", "real")]
        for folder, target, more in zip(("simulated", "real"), exported, ([], ["--site", f"{name}/state"]), strict=True):
            saved = f"{folder}/checkpoints/last.ckpt"
            export_main(["--client", name, "--ckpt_path", saved, "--output", str(target), *more])
        one, other = (torch.load(path, weights_only=True)["state_dict"] for path in exported)
        assert same_bits(one, other)
        assert not same_bits(other, torch.load("real/checkpoints/last.ckpt", weights_only=True)["state_dict"])


def test_new_clients_get_no_mean_of_parts_that_stay_at_the_sites(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    with pytest.raises(SystemExit):
        federate(configuration(**OWN["personal"], personal_start="mean"))
    assert "but the server of a real federation never has what its clients keep" in capsys.readouterr().err


def test_what_a_site_cannot_export_is_refused(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    config = configuration(**OWN["Ditto"])
    config["trainer"] |= {
        "max_epochs": 4,
        "callbacks": [{"class_path": "sites_over_bytes.Copy", "init_args": {"round_idx": 1}}],
    }
    federate(config)
    last = "real/checkpoints/last.ckpt"
    for arguments, message in (
        (["--client", "north", "--ckpt_path", last], "or run this command at the site, with a copy of the file and '--site'"),
        (
            ["--client", "north", "--ckpt_path", last, "--site", "nowhere"],
            "so the site whose state is in 'nowhere' did not train",
        ),
        (["--client", "north", "--ckpt_path", last, "--site", "south/state"], "is that of client 1, not of client 0. Name"),
        (
            ["--client", "north", "--ckpt_path", "early.ckpt", "--site", "north/state"],
            "is of round 1, but the site no longer has what it kept in that round. Use the last checkpoint",
        ),
    ):
        with pytest.raises(SystemExit) as ended:
            export_main(arguments)
        assert ended.value.code == 1
        assert message in capsys.readouterr().err


# ---------------------------------------------------------------- what outlives a crash

SCAFFOLD = {"strategy": "Scaffold", "clients_per_round": 2}


@pytest.mark.parametrize("after", [False, True], ids=["before the checkpoint", "after the checkpoint"])
def test_everything_dies_and_starts_again(after, tmp_path, monkeypatch):
    """Server and sites are killed; each site knows its c_k of the right round."""
    prepare(tmp_path, monkeypatch)
    config = configuration(**SCAFFOLD)
    config["trainer"]["max_epochs"] = 6
    whole = simulate(config)
    crash = {"class_path": "sites_over_bytes.Crash", "init_args": {"round_idx": 3, "after": after}}
    with pytest.raises(SystemExit, match="killed"):
        federate({**config, "trainer": {**config["trainer"], "callbacks": [crash]}})
    for name in NAMES:
        start_site(tmp_path, name)
    assert same_bits(whole, federate(config, "real", "--ckpt_path", "last"))


def test_a_repeated_order_is_answered_from_the_store(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    config, answered = configuration(**SCAFFOLD), []

    def twice(name, parts, ask):
        first = ask()
        if b'"orders"' in parts["order"]:
            start_site(tmp_path, name)  # it died after it had trained
            said = []
            SERVERS[name]._say = said.append
            answered.append((ask() == first, "Answered a repeated order from the store." in said))
        return first

    whole = simulate(config)
    HOOK["hook"] = twice
    assert same_bits(whole, federate(config))
    assert len(answered) >= 3 * 2
    assert set(answered) == {(True, True)}


def test_a_lost_site_ends_the_fit_with_the_ways_to_continue(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    HOOK["hook"] = lambda name, parts, ask: None if name == "south" and b'"ClientTask"' in parts["order"] else ask()
    with pytest.raises(SystemExit):
        federate(configuration())
    said = capsys.readouterr().err
    assert "Site south (client 1): no answer within its deadline. When the site can answer again, resume with" in said
    assert "or set 'federation.faults.policy' to 'skip'" in said


def test_a_lost_reply_is_asked_for_again(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    config, lost = configuration(**SCAFFOLD, faults={"retries": 1}), []

    def lose(name, parts, ask):
        reply = ask()
        if b'"ClientTask"' in parts["order"] and len(lost) < 2 and name not in lost:
            lost.append(name)
            return None
        return reply

    whole = simulate(config)
    HOOK["hook"] = lose
    assert same_bits(whole, federate(config))
    assert len(lost) == 2


def test_an_update_that_was_not_used_leaves_no_trace_at_its_site(tmp_path, monkeypatch):
    """A site that trained, and whose reply was lost, must go on like one that never got the order."""
    results = []
    for trains in (False, True):
        folder = tmp_path / str(trains)
        folder.mkdir()
        prepare(folder, monkeypatch)
        orders = []

        def drop(name, parts, ask, trains=trains, orders=orders, folder=folder):
            orders.append(name) if b'"ClientTask"' in parts["order"] and name == "south" else None
            if len(orders) != 2 or name != "south" or b'"ClientTask"' not in parts["order"]:
                return ask()
            if trains:
                ask()
                start_site(folder, name)
            return None

        HOOK["hook"] = drop
        config = configuration(strategy="Scaffold", faults={"policy": "skip"})
        config["trainer"]["max_epochs"] = 4
        with pytest.warns(UserWarning, match="Round 1 continues without client south: no answer within its deadline"):
            results.append(federate(config))
        HOOK.clear()
        assert len(orders) == 4
    assert same_bits(*results)


def test_a_site_that_lacks_a_version_says_so(tmp_path, monkeypatch, capsys):
    """A copy of an old checkpoint, after the sites have dropped the state of its round."""
    prepare(tmp_path, monkeypatch)
    config = configuration(strategy="Scaffold")
    copy = {"class_path": "sites_over_bytes.Copy", "init_args": {"round_idx": 1}}
    config["trainer"] |= {"max_epochs": 5}
    federate({**config, "trainer": {**config["trainer"], "callbacks": [copy]}})
    with pytest.raises(SystemExit):
        federate(config, "other", "--ckpt_path", str(tmp_path / "early.ckpt"))
    assert "The server restarts at round 2, but this client only has the state for round 5" in capsys.readouterr().err


# ---------------------------------------------------------------- sites that come and go

ENOUGH = ("--federation.pool.min_sites", "2")
SKIP = {"faults": {"policy": "skip"}}


def left_out(name, parts, ask):
    """Lose what is sent to one site: a fit that knows the site and gets nothing from it."""
    return ask() if name != "south" or b'"ClientTask"' not in parts["order"] else None


@pytest.mark.parametrize("seen", [True, False], ids=["seen before", "never seen"])
def test_a_fit_starts_without_an_absent_site_which_takes_part_later(seen, tmp_path, monkeypatch):
    """The others' rounds are those of a run in which the site never answers, and after its return those of all sites."""
    prepare(tmp_path, monkeypatch)
    config = configuration(**SKIP)
    HOOK["hook"] = left_out
    with pytest.warns(UserWarning, match="without client south"):
        silent = federate(config, "silent")
    assert (tmp_path / "silent" / "failures.csv").read_text().count("no answer within its deadline") == 3
    HOOK.clear()
    if not seen:
        TOLD.clear()
    ABSENT.add("south")
    for name in ("north", "west"):
        start_site(tmp_path, name)
    with pytest.warns(UserWarning, match=r"The fit starts without site south \(client 1\): it is offline"):
        assert same_bits(silent, federate(config, "absent", *ENOUGH))
    failures = (tmp_path / "absent" / "failures.csv").read_text()
    assert failures.count("it is offline" if seen else "the server does not know its data yet") == 3
    ABSENT.clear()
    config["trainer"]["max_epochs"] = 4
    federate(config, "absent", *ENOUGH, "--ckpt_path", "last", "--federation.resume_changed", "true")
    assert (tmp_path / "absent" / "failures.csv").read_text() == failures


def test_a_chain_passes_an_absent_site(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, {"label_counts": True})
    config = configuration(route={"class_path": "Mediators", "init_args": {"clients_per_mediator": 3}}, **SKIP)
    HOOK["hook"] = left_out
    with pytest.warns(UserWarning, match="without client south"):
        silent = federate(config, "silent")
    HOOK.clear()
    ABSENT.add("south")
    with pytest.warns(UserWarning, match="without client south: it is offline"):
        assert same_bits(silent, federate(config, "absent", *ENOUGH))


def test_waiting_for_fewer_sites_needs_a_policy_that_leaves_them_out(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    with pytest.raises(SystemExit):
        federate(configuration(), "real", *ENOUGH)
    assert "'federation.pool.min_sites' is 2, but 'federation.faults.policy' is 'fatal'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        federate(configuration(**SKIP), "real", "--federation.pool.min_sites", "0")
    assert "federation.pool.min_sites" in capsys.readouterr().err
    ABSENT.add("south")
    evaluation = {"every_n_rounds": 1, "metric": "val_loss"}
    with pytest.raises(SystemExit):
        federate(configuration(**SKIP, client_evaluation=evaluation), "real", *ENOUGH)
    assert "'federation.client_evaluation' needs all sites" in capsys.readouterr().err


def test_numbers_belong_to_their_sites_also_after_a_resume(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    config = configuration()
    config["trainer"]["max_epochs"] = 1
    federate(config)
    last = ("--ckpt_path", "last", "--trainer.max_epochs", "2", "--federation.resume_changed", "true")
    REGISTERED[:] = ["south", "north", "west"]
    with pytest.raises(SystemExit):
        federate(config, "real", *last)
    assert "The checkpoint knows client 0 as site 'north', but this run as 'south'." in capsys.readouterr().err
    REGISTERED[:] = ["north", "south"]
    with pytest.raises(SystemExit):
        federate(config, "real", *last)
    assert "The checkpoint has sites that are not registered here: west." in capsys.readouterr().err
    REGISTERED[:] = NAMES


def test_a_site_joins_a_run_with_the_next_number(tmp_path, monkeypatch, capsys):
    """The others keep their numbers, and so their random numbers."""
    prepare(tmp_path, monkeypatch)
    REGISTERED.pop()
    for strategy, joins in (("FedAvg", True), ("Scaffold", False)):
        config = configuration(strategy=strategy)
        config["trainer"]["max_epochs"] = 1
        federate(config, strategy)
        REGISTERED.append("west")
        last = ("--ckpt_path", "last", "--trainer.max_epochs", "2", "--federation.resume_changed", "true")
        if joins:
            federate(config, strategy, *last)
        else:
            with pytest.raises(SystemExit):
                federate(config, strategy, *last)
        REGISTERED.pop()
        for name in NAMES:
            start_site(tmp_path, name)
    told = capsys.readouterr().err
    assert "west were registered later, but 'federation.strategy' Scaffold needs the same sites" in told
    assert told.count("were registered later") == 1


# ---------------------------------------------------------------- faults and refusals


def test_an_error_at_a_site_is_told_by_class_and_code(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)

    def fails(*args, **kwargs):
        raise OSError("patient 4711 has a broken record")

    SERVERS["south"]._data.client = fails
    with pytest.raises(SystemExit):
        federate(configuration())
    told = capsys.readouterr().err
    assert "Site south (client 1): OSError (code " in told
    assert "4711" not in told
    assert "patient 4711" in (tmp_path / "south" / "state" / "errors.log").read_text()
    with pytest.warns(UserWarning, match=r"without client south.*OSError \(code"):
        federate(configuration(faults={"policy": "skip"}), "skipped")


REFUSED = {
    "attackers": ({"attackers": {"wrong_labels": {0: 0.5}}}, (), "federation.attackers"),
    "availability": ({"availability": {"drop_out": 0.1}, "faults": {"policy": "skip"}}, (), "federation.availability"),
    "clock": ({"clock": {"ticks": 10}}, (), "federation.clock"),
    "own options": ({"options": [{"class_path": "own_option.DropNumbers"}]}, (), "federation.options"),
    "secure aggregation": ({"secure_aggregation": {"threshold": 2}}, (), "federation.secure_aggregation"),
    "stacked": ({"local": {"engine": "stacked"}}, (), "federation.local.engine: stacked"),
    "public share": ({}, ("--data.public_share", "0.1"), "data.public_share"),
    "feature noise": ({}, ("--data.feature_noise", "0.1"), "data.feature_noise"),
    "label counts": ({"route": {"class_path": "Mediators", "init_args": {"clients_per_mediator": 2}}}, (), "label counts"),
    "FedLoss without parts": ({"strategy": "FedLoss"}, (), "needs a validation part at each site"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_over_a_network_is_refused_by_name(case, tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    federation, arguments, named = REFUSED[case]
    with pytest.raises(SystemExit):
        federate(configuration(**federation), "real", *arguments)
    assert named in capsys.readouterr().err


def test_a_server_of_another_minor_version_is_refused_with_both(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)

    told = envelope.opened

    def older(content, kinds):
        return told(content.replace(f'"version": "{fl_lightning.__version__}"'.encode(), b'"version": "9.9.0"'), kinds)

    monkeypatch.setattr(envelope, "opened", older)
    with pytest.raises(SystemExit):
        federate(configuration())
    error = capsys.readouterr().err
    assert "9.9.0" in error
    assert fl_lightning.__version__ in error


def test_a_site_under_another_name_is_refused(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    SERVERS["south"] = SERVERS["west"]
    with pytest.raises(SystemExit):
        federate(configuration())
    assert "Site south calls itself 'west'. Start it with --name south." in capsys.readouterr().err


def columns(path: Path, order: list[int], names: dict[str, str]) -> None:
    """Write a table with its columns in another order, and under other names."""
    rows = [row.split(",") for row in path.read_text().splitlines()]
    chosen = [[row[k] for k in order] + row[len(order) :] for row in rows]
    chosen[0] = [names.get(name, name) for name in chosen[0]]
    path.write_text("\n".join(",".join(row) for row in chosen) + "\n")


@pytest.mark.parametrize(("order", "names"), [([1, 0, 2, 3, 4, 5], {}), ([0, 1, 2, 3, 4, 5], {"pixel_0": "age"})])
@pytest.mark.parametrize("who", [["south"], list(NAMES)])
def test_a_site_with_other_columns_is_refused(order, names, who, tmp_path, monkeypatch, capsys):
    """A model reads features by their place, so it would take one for another."""
    prepare(tmp_path, monkeypatch)
    assert (tmp_path / "south" / "own.csv").read_text().startswith("pixel_0,pixel_1,pixel_2,")
    for name in who:
        columns(tmp_path / name / "own.csv", order, names)
        start_site(tmp_path, name)
    with pytest.raises(SystemExit):
        federate(configuration())
    said = " ".join(capsys.readouterr().err.split())
    for name in who:
        if names:
            assert f"Site {name} lacks the server's columns 'pixel_0' and has 1 columns that the server lacks." in said
        else:
            assert f"Site {name} has the same columns in another order, from 'pixel_0' on." in said
    assert "Give the tables of all sites the server's columns in the same order." in said
    assert "age" not in said  # a name that the server did not send


def test_features_without_names_at_the_server_are_compared_among_sites():
    infos = [ClientInfo("a", 1), ClientInfo("b", 1, digests=("", "x")), ClientInfo("c", 1, digests=("", "x"))]
    require_names(infos, None, None)
    with pytest.raises(ConfigurationError, match=r"The columns of d have other names than those of site b"):
        require_names([*infos, ClientInfo("d", 1, digests=("", "y"))], None, None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"strategy": "FedLoss"}, ("'federation.strategy FedLoss'", "validation")),
        (
            {"strategy": {"class_path": "AdaFed", "init_args": {"metric": "val_loss", "scored_by": "clients"}}},
            ("'federation.strategy AdaFed'", "validation"),
        ),
        ({"client_evaluation": {"every_n_rounds": 1, "metric": "val_loss"}}, ("'federation.client_evaluation'", "test")),
        ({"strategy": "QFedAvg"}, ("'the losses that QFedAvg reads'", "training")),
        ({"strategy": "AFL"}, ("'the losses that AFL reads'", "training")),
        ({"route": "FedStar"}, ("'federation.route FedStar'", "training")),
    ],
)
def test_evaluations_that_sites_do_not_allow_are_refused_first(settings, said, tmp_path, monkeypatch, capsys):
    """In one message with all of them and the line to add, and by a site itself if a server asks all the same."""
    prepare(tmp_path, monkeypatch, {"evaluations": []})
    give_parts(tmp_path)
    with pytest.raises(SystemExit):
        federate(configuration(**settings))
    error = " ".join(capsys.readouterr().err.split())
    what, part = said
    assert f"{what} evaluates models on each site's {part} examples." in error
    assert "Sites that do not allow it: north, south, west." in error
    assert f"they add this line to 'policy' in data.yaml: evaluations: [{part}]" in error
    path = tmp_path / "north" / "state" / "audit.jsonl"
    assert {json.loads(line)["kind"] for line in path.read_text().splitlines()} == {"describe"}
    monkeypatch.setattr("fl_lightning.flower.remote_sites.require_parts", lambda *args, **kwargs: None)
    with pytest.raises(SystemExit):
        federate(configuration(**settings))
    told = " ".join(capsys.readouterr().err.split())
    assert told.count(f"evaluates models on each client's {part} examples, which this site does not allow") == 3
    assert {json.loads(line)["kind"] for line in path.read_text().splitlines()} == {"describe", "prepare", "error"}


def test_a_site_that_restarts_while_a_fit_starts_is_asked_again(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    lost: list[bytes] = []

    def lose(name: str, parts: Any, ask: Callable[[], bytes]) -> bytes | None:
        if name == "south" and parts["order"] not in lost and b'"ClientTask"' not in parts["order"]:
            lost.append(parts["order"])
            return None
        return ask()

    HOOK["hook"] = lose
    assert same_bits(
        federate(configuration(), "real", "--trainer.max_epochs", "1"),
        simulate(configuration(), "one", "--trainer.max_epochs", "1"),
    )
    assert len(lost) >= 2  # the description and the settings
    HOOK["hook"] = lambda name, parts, ask: None if name == "south" else ask()
    with pytest.raises(SystemExit):
        federate(configuration(), "never")
    assert "Some sites cannot take part. Site south: no answer within its deadline" in capsys.readouterr().err


def test_a_site_without_examples_is_refused(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    monkeypatch.setattr(SERVERS["west"]._data, "info", lambda name, *_: ClientInfo(name, 0))
    with pytest.raises(SystemExit):
        federate(configuration())
    assert "Site west has no training examples. Check the data.yaml there." in capsys.readouterr().err


def written(model: dict[str, Any]) -> dict[str, Any]:
    """Return a model with its loss as a class, where YAML may have its name alone."""
    return {**model, "init_args": {**model["init_args"], "loss": {"class_path": model["init_args"]["loss"]}}}


def script(pool: Any, module: Any = None, **federation: Any) -> Any:
    """Fit from Python, as a user's script does, and return the Trainer."""
    from lightning.pytorch import Trainer, seed_everything

    from fl_lightning import DomainPartitioner, FederatedDataModule, FederatedOrchestrator, LocalTraining, TableDataModule

    seed_everything(0)
    module = pool.build_model() if module is None else module
    own = configuration()["data"]["datamodule"]["init_args"]
    data = FederatedDataModule(TableDataModule(**{**own, "path": "few.csv"}), DomainPartitioner())
    flags = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "num_sanity_val_steps": 0}
    federation = FederatedOrchestrator(pool=pool, **{"local": LocalTraining(threads=1), **federation})
    trainer = Trainer(max_epochs=3, callbacks=[federation], enable_checkpointing=False, enable_model_summary=False, **flags)
    trainer.fit(module, data)
    return trainer


def test_a_python_script_gives_the_bits_of_the_command_line(tmp_path, monkeypatch):
    """The strategy, the clients' optimizer settings and a transform are objects; the model is values."""
    from fl_lightning import FedNova, LocalTraining, TopK

    prepare(tmp_path, monkeypatch)
    config = configuration(strategy="FedNova", local={"threads": 1, "max_epochs": 2, "lr_decay": 0.9}, transforms=[TOP_K])
    pool = BytesSites(model=written(config["model"]))
    local = LocalTraining(threads=1, max_epochs=2, lr_decay=0.9)
    trainer = script(pool, strategy=FedNova(), local=local, transforms=[TopK(share=0.3)])
    assert same_bits(simulate(config), trainer.lightning_module.state_dict())


def test_a_python_script_is_told_what_sites_cannot_build(tmp_path, monkeypatch):
    from fl_lightning import ConfigurationError, FedAvg

    class Mine(FedAvg):
        pass

    class Forgetful(FedAvg):
        def __init__(self, power: float = 1.0) -> None:
            super().__init__()

    Forgetful.__qualname__ = "Forgetful"
    prepare(tmp_path, monkeypatch)
    model = written(configuration()["model"])
    other = BytesSites(model={**model, "init_args": {**model["init_args"], "network": LARGER}}).build_model()
    with pytest.raises(ConfigurationError, match=r"FlowerPool\(..., model=.*pool.build_model"):
        script(BytesSites(), other)
    with pytest.raises(ConfigurationError, match="has no 'model' to build"):
        BytesSites().build_model()
    with pytest.raises(ConfigurationError, match=r"cannot be built .* Write every class in it as"):
        BytesSites(model=configuration()["model"]).build_model()
    with pytest.raises(ConfigurationError, match=r"whose 'network.layers.1.bias' differs .* Fit 'pool.build_model\(\)'"):
        script(BytesSites(model=model), other)
    with pytest.raises(ConfigurationError, match=r"Sites cannot import .*Mine' from a script"):
        script(BytesSites(model=model), strategy=Mine())
    with pytest.raises(ConfigurationError, match=r"'federation.strategy' is .*Forgetful.* cannot build from values"):
        script(BytesSites(model=model), strategy=Forgetful())


def test_values_of_optimizers_and_classes():
    from functools import partial

    from fl_lightning import ConfigurationError, LocalTraining
    from fl_lightning.flower.values import values_of

    assert values_of(torch.optim.SGD, "x") == {"class_path": "torch.optim.SGD", "init_args": {}}
    made = partial(torch.optim.lr_scheduler.StepLR, step_size=3)
    assert values_of(made, "x") == {"class_path": "torch.optim.lr_scheduler.StepLR", "init_args": {"step_size": 3}}
    found = values_of(LocalTraining(max_epochs=7), "local")
    assert found["class_path"] == "fl_lightning.LocalTraining"
    assert found["init_args"]["max_epochs"] == 7
    with pytest.raises(ConfigurationError, match=r"'federation.x' is .*lambda"):
        values_of(lambda: 1, "x")


def test_the_audit_log_names_what_crossed_the_border(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    federate(configuration())
    lines = [json.loads(line) for line in (tmp_path / "west" / "state" / "audit.jsonl").read_text().splitlines()]
    sent = [line["tensors"] for line in lines if line["direction"] == "out" and line["tensors"]]
    parameters = 6 * 5 + 5 + 5 * 3 + 3
    assert len(sent) == 3
    assert all(tensors["replies[0].model.vector"] == ["float32", parameters] for tensors in sent)
    assert all(len(line["sha256"]) == 64 for line in lines)
    (folder,) = (tmp_path / "west" / "state" / "federations").iterdir()
    assert {line["federation"] for line in lines if line["kind"] != "describe"} == {folder.name}
