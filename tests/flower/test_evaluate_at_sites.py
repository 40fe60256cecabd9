"""``fl-lightning evaluate``: the matrix of a simulation is that of sites, to the bit, and nothing that a site keeps changes."""

import csv
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sites_over_bytes as net
import torch
from masked_sites import masked, masks, plain, secure

from fl_lightning.cli.federation_cli import main
from fl_lightning.flower.site.parent import main as site
from fl_lightning.wire import from_bytes

SITES = ("--data.datamodule.path", "few.csv", *net.POOL)
CLASSES = "torchmetrics.classification"
METRICS = (
    *("--metrics+", f"{CLASSES}.MulticlassAccuracy", "--metrics.num_classes", "3"),
    *("--metrics+", f"{CLASSES}.MulticlassROC", "--metrics.num_classes", "3", "--metrics.thresholds", "5"),
)
TWO = ("--trainer.max_epochs", "2")


def evaluate(folder: str, *more: str, resamples: int = 0) -> list[dict[str, str]]:
    """Return the rows of ``evaluation.csv``."""
    given = ("--config", "config.yaml", "--trainer.default_root_dir", folder, "--resamples", str(resamples))
    main(["evaluate", *given, *METRICS, *more])
    with Path(folder, "evaluation/evaluation.csv").open() as file:
        return list(csv.DictReader(file))


def said(*more: str) -> str:
    """Return the message with which an evaluation at the sites ends."""
    return net.refused({}, fit=lambda *_: evaluate("real", *SITES, *last("real"), *more))


def last(folder: str) -> tuple[str, str]:
    return "--checkpoints", f"{folder}/checkpoints/last.ckpt"


def config_of(**federation: Any) -> dict[str, Any]:
    return net.configuration(**federation) | {"best_checkpoint": {"monitor": "val_loss", "mode": "min"}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Iterator[Path]:
    """A federation of two rounds as a simulation and at sites, with a checkpoint of another model."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        net.prepare(folder, patch)
        net.simulate(config_of(), "simulated", *net.PARTS, *TWO)
        net.give_parts()
        net.federate(config_of(), "real", *TWO)
        found = torch.load("real/checkpoints/last.ckpt", weights_only=True)
        torch.save({name: 2 * tensor for name, tensor in found["state_dict"].items()}, "foreign.pt")
        yield folder


@pytest.fixture
def here(runs, tmp_path, monkeypatch) -> Path:
    """A copy of the runs, with sites of its own."""
    shutil.copytree(runs, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    for name in net.NAMES:
        path = Path(name, "data.yaml")
        path.write_text(path.read_text().replace(str(runs), str(tmp_path / "copy")))
    net.restart()
    return tmp_path / "copy"


@pytest.mark.slow
def test_the_matrix_is_that_of_the_simulation_to_the_bit(here):
    net.restart(limits={"federations": 1})  # which is that of the fit, so nobody is asked to agree again
    simulated = evaluate("simulated", *net.PARTS, *last("simulated"), "foreign.pt", "--trainer.logger", "false", resamples=40)
    real = evaluate("real", *SITES, *last("real"), "foreign.pt", resamples=40)
    assert real == simulated
    assert Path("real/evaluation/curves.csv").read_text() == Path("simulated/evaluation/curves.csv").read_text()
    assert [(row["model"], row["site"]) for row in real if "Accuracy" in row["metric"]] == [
        (model, site) for model in ("global", "foreign") for site in (*net.NAMES, "all")
    ]
    assert {row["n"] for row in real} == {"6", "9", "12", "27"}
    assert Path("real/evaluation/MulticlassAccuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "| global |" in Path("real/evaluation/evaluation.md").read_text()
    assert evaluate("real", *SITES, *last("real"), "foreign.pt", resamples=40) == real  # asked again


def states() -> dict[str, dict[str, Any]]:
    """Return what sites keep for the next round of a fit."""
    found = {name: from_bytes(next(Path(name, "state").rglob("state.bin")).read_bytes()) for name in net.NAMES}
    keys = ("next_round", "unsettled", "forgotten", "session")
    return {name: {key: state[key] for key in keys} for name, state in found.items()}


@pytest.mark.slow
def test_an_evaluation_changes_nothing_at_a_site(here):
    """The fit goes on as if nobody had asked: the model of an older checkpoint is no restart of the server."""
    kept = states()
    evaluate("real", *SITES, "--checkpoints", "real/checkpoints/best.ckpt", "foreign.pt")
    assert states() == kept
    more = ("--ckpt_path", "last", "--trainer.max_epochs", "3")
    assert net.same_bits(net.simulate(config_of(), "simulated", *net.PARTS, *more), net.federate(config_of(), "real", *more))


@pytest.mark.slow
def test_cells_say_why_they_are_empty(here):
    net.restart("south", limits={"min_rows": 10})
    net.restart("west", limits={"tells": ["examples", "evaluation/validation"]})
    net.restart("north", limits={"answers": 3})
    rows = evaluate("real", *SITES, *last("real"), "foreign.pt")
    told = {row["site"]: row["reason"] for row in rows if "Accuracy" in row["metric"] and row["model"] == "global"}
    assert told["north"] == ""
    assert "fewer than 10 rows or persons ('policy.min_rows')" in told["south"]
    assert "needs what this site does not tell: figures of models on its test examples" in told["west"]
    assert told["all"].startswith("not told by south, west: RefusedError: ")
    assert "[1]: RefusedError: " in Path("real/evaluation/evaluation.md").read_text()
    answers = [row["reason"] for row in rows if row["site"] == "north"]
    assert answers[:3] == [""] * 3
    assert "'policy.answers' is 3" in answers[3]


def test_after_masked_training_the_staff_agree_to_the_evaluation_alone(capsys):
    """They could only agree to settings without masks, which a training without masks has, too."""
    masked(federations=1, tells=["examples", "steps", "loss", "evaluation/training"])
    net.federate(secure(2), "real")
    sent = net.audit("site0")
    answers = said("--part", "training")
    assert "'evaluate' measures each client, but with 'federation.secure_aggregation' the server learns no figure" in answers
    assert "remove 'federation.secure_aggregation': sites then answer questions, and train nothing" in answers
    assert net.audit("site0") == sent  # it is refused before anything is sent
    alone = ("--federation.secure_aggregation", "null", "--part", "training")
    answers = said(*alone)
    assert answers.count("The server asks to evaluate models, whose figures for this site alone leave it; not to train.") == 3
    for name, words in re.findall(r"fl-lightning site approve --name (\w+) (\w+ \w+)", answers):
        site(["site", "approve", "--folder", f"{name}/state", *words.split(), "--yes"])
        assert '+  "covers": "evaluate models, whose figures for this site' in capsys.readouterr().out
    rows = evaluate("real", *SITES, *last("real"), *alone)
    told = {row["site"]: row["value"] for row in rows if "Accuracy" in row["metric"]}
    assert all(told[name] for name in (*net.REGISTERED, "all"))
    net.restart(limits={"update": "plain"})
    plainly = net.refused(plain(3), "real", "--ckpt_path", "last", "--federation.checkpoints.resume_changed", "true")
    assert plainly.count("The server asks to train, and evaluate models; the update leaves as it is.") == 3
    net.restart(limits={"update": masks()})
    assert net.same_bits(net.simulate(secure(3)), net.federate(secure(3), "real", "--ckpt_path", "last"))


# ---------------------------------------------------------------- clients' own models


@pytest.mark.slow
def test_own_models_stay():
    """The diagonal is the simulation's, and the other cells say why they are empty."""
    net.prepare()
    config = config_of(personal=[{"names": "layers.4.*"}], client_evaluation={"every_n_rounds": 1, "metric": "val_loss"})
    net.simulate(config, "simulated", *net.PARTS, *TWO)
    net.give_parts()
    net.federate(config, "real", *TWO)
    simulated = evaluate("simulated", *net.PARTS, *last("simulated"), resamples=20)
    assert {row["model"] for row in simulated} == {f"own of {name}" for name in net.NAMES}  # the shared part alone is no model
    real = evaluate("real", *SITES, *last("real"), resamples=20)
    for mine, theirs in zip(real, simulated, strict=True):
        owner = mine["model"].removeprefix("own of ")
        if owner == mine["site"]:
            assert mine == theirs
        elif mine["site"] != "all":
            assert (mine["reason"], mine["value"], mine["n"]) == ("the model of a site stays there", "", "")
    assert {row["value"] for row in simulated if row["site"] == "north"} != {""}


@pytest.mark.slow
def test_what_a_site_kept_after_an_older_round_is_not_mixed_with_a_newer_one():
    net.prepare()
    net.give_parts()
    net.federate(config_of(strategy="Ditto"), "real", "--trainer.max_epochs", "1")
    shutil.copy("real/checkpoints/last.ckpt", "early.ckpt")
    early = evaluate("real", *SITES, "--checkpoints", "early.ckpt")
    net.federate(config_of(strategy="Ditto"), "real", "--ckpt_path", "last", "--trainer.max_epochs", "4")
    late = evaluate("real", *SITES, "--checkpoints", "early.ckpt")
    own = [row for row in late if row["model"].startswith("own") and row["site"] == row["model"].removeprefix("own of ")]
    assert len(own) == 6
    assert all("no longer has what it kept in that round" in row["reason"] for row in own)
    shared = [row for row in late if row["model"] == "global"]
    assert shared == [row for row in early if row["model"] == "global"]
