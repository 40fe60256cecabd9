"""Sites get the same YAML as a simulation, as values and bytes, and give the same bits."""

import math
from pathlib import Path
from typing import Any

import pytest
import sites_over_bytes as net
import torch
import yaml
from accountants import gaussian_epsilon

import fl_lightning
from fl_lightning.cli.commands.export import main as export
from fl_lightning.errors import FederationError
from fl_lightning.flower.site.policy import Policy


def once(**settings: Any) -> dict[str, Any]:
    return {"threads": 1, **settings}


ADAPTIVE = net.of("F1WeightedCrossEntropy", num_classes=3, epsilon=0.1)
TOP_K, HALF, QUANTIZE = net.of("TopK", share=0.3), net.of("HalfPrecision", dtype="float16"), net.of("Quantize", bits=5, block=7)
CASES: dict[str, dict[str, Any]] = {
    "AdaFed with its loss": {"strategy": "AdaFed", "loss": ADAPTIVE},
    "FedProx": {"local": once(proximal_mu=0.3, max_epochs=2)},
    "Fed-Cyclic": {"route": "FedCyclic"},
    "RingFed": {"route": net.of("RingFed", periods=2)},
    "torch's loss and Adam": {"server_optimizer": net.of("torch.optim.Adam"), "loss": "torch.nn.CrossEntropyLoss"},
    "fabric": {"local": once(engine="fabric")},
    "clipped": {"transforms": [net.of("ClipUpdate", max_norm=0.05)]},
}


@pytest.mark.parametrize("case", net.slow_but(CASES, "AdaFed with its loss"))
def test_sites_give_the_bits_of_the_simulation(case):
    net.prepare()
    federation = dict(CASES[case])
    loss = federation.pop("loss", "CrossEntropy")
    config = net.configuration(2, **federation)
    config["model"]["init_args"]["loss"] = loss
    assert net.equal(config)


DECLARED: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("FedAvg", "FedNova", "FedMedian", "TrimmedMean", "Krum", "GeometricMedian", "CosineFilter")},
    **{name: {} for name in ("Scaffold", "FedDyn", "FedExP", "FedAdagrad", "LastClient", "Ditto", "PFedMe")},
    **{name: {} for name in ("FedLoss", "QFedAvg", "AFL", "FedAvgM", "ShapleyValues", "APFL")},
    "MOON": {"strategy": net.of("MOON", representation="network.layers.2")},
    "FedSGD": {"local": once(full_batch=True)},
    "AdaFed": {"strategy": net.of("AdaFed", metric="val_loss", scored_by="clients")},
}


@pytest.mark.parametrize("name", net.slow_but(DECLARED, "FedNova", "FedMedian"))
def test_sites_that_tell_just_what_a_strategy_declares_give_the_bits_of_the_simulation(name):
    """A number that it reads and does not declare would be another one at the server, and so would the weights."""
    federation = {"strategy": name, **DECLARED[name]}
    given = federation["strategy"]["init_args"] if isinstance(federation["strategy"], dict) else {}
    strategy = getattr(fl_lightning, name)(**given)
    parts = {"validation": strategy.local_metric, "training": strategy.global_metric}
    tells = [*strategy.reads, *(f"evaluation/{part}" for part, used in parts.items() if used is not None)]
    net.prepare(tells=tells)
    config = net.configuration(2, **federation)
    simulated = net.simulate(config, "simulated", *net.PARTS)
    net.give_parts()
    assert net.same_bits(simulated, net.federate(config))
    assert {update["optimizer"] for line in net.audit() for one in line.get("replies", ()) for update in one.values()} <= {""}


@pytest.mark.slow
def test_streams_at_the_sites_give_the_bits_of_the_simulation():
    """The sites do not know how many rows they have; the updates tell, and weigh by it."""
    net.prepare()
    own = {name: net.of("sites_over_bytes.Streaming", path=str(Path(name, "own.csv").resolve())) for name in net.NAMES}
    for name in net.NAMES:
        net.restart(name, datamodule=own[name])
    real = net.federate(net.configuration())
    assert [(net.TOLD[name].num_examples, net.TOLD[name].streams) for name in net.NAMES] == [(1, True)] * 3
    rows = [row.split(",") for row in Path("real/client_rounds.csv").read_text().splitlines()]
    assert [float(row[rows[0].index("examples")]) for row in rows[1:4]] == [24.0, 36.0, 48.0]
    assert net.same_bits(net.simulate(net.configuration() | {"data": {"clients": own}}), real)
    assert net.SERVERS["west"]._data.info("west", Policy(tells=["statistics"]), statistics=True).moments is None


@pytest.mark.slow
def test_frozen_parts_are_sent_once():
    """Transfer learning: thawed from round 3 on. A site that starts again gets everything."""
    net.prepare()
    config = net.configuration(5)
    config["trainer"]["callbacks"] = [net.of("TransferLearning", parts=["network.layers.1"], thaw_after=3)]

    def restarting(ask):
        if len(begun) == 3:
            net.start_site(Path(), "north")
        return ask()

    whole, begun = net.simulate(config), net.disturb("north", restarting)
    assert net.same_bits(whole, net.federate(config))
    names = {}
    for name in ("north", "west"):
        models = [line["tensors"] for line in net.audit(name) if line["kind"] == "model"]
        names[name] = [any("network.layers.1.weight" in tensor for tensor in tensors) for tensors in models]
        assert all(any("network.layers.4.weight" in tensor for tensor in tensors) for tensors in models)
    assert names["west"] == [True, False, False, False, True]  # round 3 trains it for the first time, from the value it has
    assert names["north"] == [True, False, False, True, False, True]


@pytest.mark.slow
def test_central_noise_of_clients_privacy():
    """The sites clip, and the server adds noise from its own key: with almost none, the weights are the simulation's."""
    pytest.importorskip("dp_accounting")
    net.prepare()
    private = net.of("ClientPrivacy", max_norm=0.05, noise_multiplier=1e-9, noise="central")
    config = net.configuration(transforms=[private], strategy=net.of("FedAvg", weighting="uniform"))
    here, there = net.simulate(config), net.federate(config)
    assert all(torch.allclose(here[name], there[name], atol=1e-6) for name in here)
    config["federation"]["transforms"] = []
    free = net.federate(config, "free")
    assert max(float((free[name] - there[name]).abs().max()) for name in free) > 0.01


@pytest.mark.slow
def test_sites_get_the_noise_that_was_solved_for_a_target_and_hold_it_to_their_policy():
    pytest.importorskip("dp_accounting")
    net.prepare()
    private = net.of("ClientPrivacy", max_norm=0.05, noise="local", target_epsilon=2.0, delta=1e-3)
    config = net.configuration(transforms=[private])
    net.federate(config)
    (settings,) = (yaml.safe_load(line["text"])["federation"] for line in net.audit() if "text" in line)
    sent = settings["transforms"][0]["init_args"]
    assert sent["target_epsilon"] is None
    assert 1.98 <= gaussian_epsilon(sent["noise_multiplier"] / 2 / math.sqrt(3), 1e-3) <= 2.0
    net.restart(limits={"update": {"noise": {"least": 50.0}}, "tells": None})
    assert "policy requires 50" in net.refused(config, "strict")


SENT = {  # 53 parameters, 16 of which are 30 %
    "TopK": ([TOP_K], {"numbers": ["float32", 16], "positions": ["int32", 16]}),
    "Quantize": ([QUANTIZE], {"numbers": ["uint8", math.ceil(53 * 5 / 8)], "scales": ["float32", math.ceil(53 / 7)]}),
    "both": ([TOP_K, QUANTIZE], {"numbers": ["uint8", 10], "positions": ["int32", 16], "scales": ["float32", 3]}),
    "HalfPrecision": ([net.of("HalfPrecision")], {"numbers": ["bfloat16", 53]}),
    "TopK, then halves": ([TOP_K, HALF], {"numbers": ["float16", 16], "positions": ["int32", 16]}),
    "quantised, then sparse": ([QUANTIZE, TOP_K], {"numbers": ["float32", 16], "positions": ["int32", 16]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", net.slow_but(SENT, "both"))
def test_what_transforms_compress_is_sent_compressed(case):
    net.prepare()
    transforms, expected = SENT[case]
    assert net.equal(net.configuration(2, transforms=transforms))
    sent = [line for line in net.audit("west") if line["direction"] == "out" and line["tensors"]]
    for line in sent:
        found = {name.partition("compressed.")[2]: told for name, told in line["tensors"].items()}
        assert found == expected | {"rest": ["float32", 0], "counters": ["int64", 0]}
    assert len(sent) == 2


# ---------------------------------------------------------------- evaluations, and what stays at the sites

HEAD = {"personal": [{"names": "layers.4.*"}]}
OWN: dict[str, dict[str, Any]] = {
    "personal": HEAD,
    "FedRep": {**HEAD, "strategy": "FedRep", "local": once(max_epochs=2)},
    "Ditto": {"strategy": "Ditto"},
}


def rows_of(table: str) -> list[list[list[str]]]:
    """Return the numbers of a table of the simulation and of the sites."""
    tables = [Path(folder, table).read_text().splitlines() for folder in ("simulated", "real")]
    return [[line.split(",")[1:] for line in lines[1:]] for lines in tables]


@pytest.mark.parametrize("case", net.slow_but(OWN, "personal"))
def test_personal_parts_and_models_stay_at_the_sites(case):
    """Weights and evaluations are those of the simulation; no message from a site holds what it keeps."""
    net.prepare()
    config = net.configuration(**OWN[case], client_evaluation={"every_n_rounds": 1, "metric": "val_accuracy"})
    here = net.simulate(config, "simulated", *net.PARTS)
    net.give_parts()
    assert net.same_bits(here, net.federate(config))
    simulated, real = rows_of("client_evaluation.csv")
    assert simulated == real
    states = torch.load("real/checkpoints/last.ckpt", weights_only=True)["callbacks"].values()
    assert next(state["memory"] for state in states if "memory" in state) == {}
    for name in net.NAMES:  # what a site exports is what the simulation exports for it
        for folder, more in (("simulated", []), ("real", ["--site", f"{name}/state"])):
            saved = f"{folder}/checkpoints/last.ckpt"
            export(["--client", name, "--ckpt_path", saved, "--output", f"{folder}_{name}.ckpt", *more])
        one, other = (torch.load(f"{folder}_{name}.ckpt", weights_only=True)["state_dict"] for folder in ("simulated", "real"))
        assert net.same_bits(one, other)
        assert not net.same_bits(other, torch.load("real/checkpoints/last.ckpt", weights_only=True)["state_dict"])


@pytest.mark.slow
def test_what_a_site_cannot_export_is_refused():
    net.prepare()
    config = net.configuration(4, **OWN["Ditto"])
    config["trainer"]["callbacks"] = [net.of("sites_over_bytes.Copy", round_idx=1)]
    net.federate(config)
    last = "--client north --ckpt_path real/checkpoints/last.ckpt"
    for words, message in (
        (last, "or run this command at the site, with a copy of the file and '--site'"),
        (f"{last} --site nowhere", "so the site whose state is in 'nowhere' did not train"),
        (f"{last} --site south/state", "is that of client 1, not of client 0. Name"),
        ("--client north --ckpt_path early.ckpt --site north/state", "is of round 1, but the site no longer has what it kept"),
    ):
        with pytest.raises(FederationError) as told:
            export(words.split())
        assert message in str(told.value)


def test_evaluations_that_sites_do_not_allow_are_refused_first():
    """In one message with all of them and the line to add; test_site_policy.py has the settings that need some."""
    net.prepare(tells=["examples"])
    net.give_parts()
    said = net.refused(net.configuration(client_evaluation={"every_n_rounds": 1, "metric": "val_loss"}))
    needs = "'federation.client_evaluation' needs what this site does not tell: figures of models on its test examples"
    assert said.count(needs) == 3
    assert "under 'policy': tells: [examples, evaluation/test]" in said
    assert {line["kind"] for line in net.audit()} == {"describe", "prepare", "error"}


# ---------------------------------------------------------------- columns


def columns(path: Path, order: list[int], names: dict[str, str]) -> None:
    """Write a table with its columns in another order, and under other names."""
    rows = [row.split(",") for row in path.read_text().splitlines()]
    chosen = [[row[k] for k in order] + row[len(order) :] for row in rows]
    chosen[0] = [names.get(name, name) for name in chosen[0]]
    path.write_text("\n".join(",".join(row) for row in chosen) + "\n")


@pytest.mark.slow
def test_a_site_with_other_columns_is_refused():
    """A model reads features by their place, so it would take one for another."""
    net.prepare()
    columns(Path("north/own.csv"), [1, 0, 2, 3, 4, 5], {})
    columns(Path("west/own.csv"), [*range(6)], {"pixel_0": "age"})
    net.restart()
    found = net.refused(net.configuration())
    assert "north, west and the server have different columns, so the same number would not mean the same." in found
    assert "The server's are pixel_0, pixel_1, " in found
    assert "age" not in found  # only digests of names leave a site
