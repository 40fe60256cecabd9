"""``fl-lightning evaluate``: the matrix of a simulation is that of sites, to the bit, and nothing that a site keeps changes."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from sites_over_bytes import NAMES, SERVERS, configuration, federate, give_parts, prepare, same_bits, simulate, start_site

from fl_lightning.cli.federation_cli import main
from fl_lightning.wire import from_bytes

PARTS = ("--data.client_validation", "0.25", "--data.client_test", "0.25")
SITES = ("--data.datamodule.path", "few.csv", "--federation.pool", "sites_over_bytes.BytesSites")
CLASSES = "torchmetrics.classification"
METRICS = (
    *("--metrics+", f"{CLASSES}.MulticlassAccuracy", "--metrics.num_classes", "3"),
    *("--metrics+", f"{CLASSES}.MulticlassROC", "--metrics.num_classes", "3", "--metrics.thresholds", "5"),
)
PERSONAL = {
    "personal": [{"names": "layers.4.*"}],
    "client_evaluation": {"every_n_rounds": 1, "metric": "val_loss"},
}


def evaluate(folder: str, *more: str, resamples: int = 40) -> list[dict[str, str]]:
    """Return the rows of ``evaluation.csv``."""
    given = ("--config", "config.yaml", "--trainer.default_root_dir", folder, "--resamples", str(resamples))
    main(["evaluate", *given, *(METRICS if not any("--metrics" in one for one in more) else ()), *more])
    with Path(folder, "evaluation/evaluation.csv").open() as file:
        return list(csv.DictReader(file))


def last(folder: str) -> tuple[str, str]:
    return "--checkpoints", f"{folder}/checkpoints/last.ckpt"


def config_of(**federation: Any) -> dict[str, Any]:
    return configuration(**federation) | {"best_checkpoint": {"monitor": "val_loss", "mode": "min"}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Iterator[Path]:
    """A federation of two rounds as a simulation and at sites, with a checkpoint of another model."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        prepare(folder, patch)
        simulate(config_of(), "simulated", *PARTS, "--trainer.max_epochs", "2")
        give_parts(folder)
        federate(config_of(), "real", "--trainer.max_epochs", "2")
        found = torch.load("real/checkpoints/last.ckpt", weights_only=True)
        torch.save({name: 2 * tensor for name, tensor in found["state_dict"].items()}, "foreign.pt")
        yield folder


@pytest.fixture
def here(runs, tmp_path, monkeypatch) -> Path:
    """A copy of the runs, with sites of its own."""
    shutil.copytree(runs, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    for name in NAMES:
        path = Path(name, "data.yaml")
        path.write_text(path.read_text().replace(str(runs), str(tmp_path / "copy")))
        start_site(tmp_path / "copy", name)
    return tmp_path / "copy"


def with_policy(here: Path, name: str, **policy: Any) -> None:
    path = here / name / "data.yaml"
    settings = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(settings | {"policy": settings["policy"] | policy}))
    start_site(here, name)


def test_the_matrix_is_that_of_the_simulation_to_the_bit(here):
    for name in NAMES:
        with_policy(here, name, federations=1)  # which is that of the fit, so nobody is asked to agree again
    simulated = evaluate("simulated", *PARTS, *last("simulated"), "foreign.pt", "--trainer.logger", "false")
    real = evaluate("real", *SITES, *last("real"), "foreign.pt")
    assert real == simulated
    assert Path("real/evaluation/curves.csv").read_text() == Path("simulated/evaluation/curves.csv").read_text()
    assert [(row["model"], row["site"]) for row in real if "Accuracy" in row["metric"]] == [
        (model, site) for model in ("global", "foreign") for site in (*NAMES, "all")
    ]
    assert {row["n"] for row in real} == {"6", "9", "12", "27"}
    assert Path("real/evaluation/MulticlassAccuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "| global |" in Path("real/evaluation/evaluation.md").read_text()
    assert evaluate("real", *SITES, *last("real"), "foreign.pt") == real  # asked again


def test_an_evaluation_changes_nothing_at_a_site(here):
    """The fit goes on as if nobody had asked: the model of an older checkpoint is no restart of the server."""
    kept = {name: from_bytes(next(Path(name, "state").rglob("state.bin")).read_bytes()) for name in NAMES}
    evaluate("real", *SITES, "--checkpoints", "real/checkpoints/best.ckpt", "foreign.pt", resamples=0)
    for name in NAMES:
        now = from_bytes(next(Path(name, "state").rglob("state.bin")).read_bytes())
        same = {key: (kept[name][key], now[key]) for key in now if key in ("next_round", "unsettled", "forgotten", "session")}
        assert all(before == after for before, after in same.values())
        assert len(same) == 4
    more = ("--ckpt_path", "last", "--trainer.max_epochs", "3")
    assert same_bits(simulate(config_of(), "simulated", *PARTS, *more), federate(config_of(), "real", *more))


def test_cells_say_why_they_are_empty(here):
    with_policy(here, "south", min_examples=10)
    with_policy(here, "west", evaluations=["validation"])
    rows = evaluate("real", *SITES, *last("real"), resamples=0)
    said = {row["site"]: row["reason"] for row in rows if "Accuracy" in row["metric"]}
    assert said["north"] == ""
    assert "fewer than 10 examples or persons ('policy.min_examples')" in said["south"]
    assert "This site does not allow evaluation on its test examples" in said["west"]
    assert said["all"].startswith("not told by south, west: RefusedError: ")
    table = Path("real/evaluation/evaluation.md").read_text()
    assert "[1]: RefusedError: " in table


def test_a_budget_ends_the_matrix_in_words(here):
    with_policy(here, "north", max_evaluations=3)
    rows = evaluate("real", *SITES, *last("real"), "foreign.pt", resamples=0)
    told = [row["reason"] for row in rows if row["site"] == "north"]
    assert told[:3] == [""] * 3
    assert "'policy.max_evaluations' is 3" in told[3]


# ---------------------------------------------------------------- clients' own models


def test_own_models_stay_or_travel(tmp_path, monkeypatch):
    """Where they stay, the diagonal is the simulation's; where they travel, the row is."""
    prepare(tmp_path, monkeypatch)
    config = config_of(**PERSONAL) | {"best_checkpoint": {"monitor": "val_loss", "mode": "min"}}
    simulate(config, "simulated", *PARTS, "--trainer.max_epochs", "2")
    give_parts(tmp_path)
    federate(config, "real", "--trainer.max_epochs", "2")
    simulated = evaluate("simulated", *PARTS, *last("simulated"), resamples=20)
    assert {row["model"] for row in simulated} == {f"own of {name}" for name in NAMES}  # the shared part alone is no model
    with_policy(tmp_path, "west", own_model="travels")
    real = evaluate("real", *SITES, *last("real"), resamples=20)
    for mine, theirs in zip(real, simulated, strict=True):
        owner = mine["model"].removeprefix("own of ")
        if owner == "west" or owner == mine["site"]:
            assert mine == theirs
        elif mine["site"] != "all":
            assert (mine["reason"], mine["value"], mine["n"]) == ("the model of a site stays there", "", "")
    assert {row["value"] for row in simulated if row["site"] == "north"} != {""}


def test_what_a_site_kept_after_an_older_round_is_not_mixed_with_a_newer_one(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    give_parts(tmp_path)
    federate(config_of(strategy="Ditto"), "real", "--trainer.max_epochs", "1")
    shutil.copy("real/checkpoints/last.ckpt", "early.ckpt")
    early = evaluate("real", *SITES, "--checkpoints", "early.ckpt", resamples=0)
    federate(config_of(strategy="Ditto"), "real", "--ckpt_path", "last", "--trainer.max_epochs", "4")
    late = evaluate("real", *SITES, "--checkpoints", "early.ckpt", resamples=0)
    own = [row for row in late if row["model"].startswith("own") and row["site"] == row["model"].removeprefix("own of ")]
    assert len(own) == 6
    assert all("no longer has what it kept in that round" in row["reason"] for row in own)
    shared = [row for row in late if row["model"] == "global"]
    assert shared == [row for row in early if row["model"] == "global"]


# ---------------------------------------------------------------- refusals


def test_masks_are_refused_by_name_before_anything_is_sent(here, capsys):
    asked = {name: (here / name / "state/audit.jsonl").read_text() for name in NAMES}
    with pytest.raises(SystemExit):
        evaluate("real", *SITES, *last("real"), "--federation.secure_aggregation", "SecureAggregation")
    said = " ".join(capsys.readouterr().err.split())
    assert "'evaluate' measures each client, but with 'federation.secure_aggregation' the server learns no figure" in said
    assert asked == {name: (here / name / "state/audit.jsonl").read_text() for name in NAMES}
    assert SERVERS


def test_noise_is_refused_by_the_site(here, capsys):
    with_policy(here, "north", min_noise=1.0)
    with pytest.raises(SystemExit):
        evaluate("real", *SITES, *last("real"), resamples=0)
    assert "this site's policy requires 1.0" in " ".join(capsys.readouterr().err.split())
