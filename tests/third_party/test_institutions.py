"""Patients with lung cancer at nine institutions (lifelines' ``lung.csv``), in exports made unlike each other."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sites_over_bytes
import torch
import yaml
from sites_over_bytes import POLICY, REGISTERED, TOLD, configuration, same_bits, simulate, start_site, weights

from fl_lightning import MLP, Standardized, TableDataModule
from fl_lightning.cli.federation_cli import main
from fl_lightning.functional.exact_moments import moments_of

pytestmark = [pytest.mark.third_party, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("lifelines")
pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
SCHEMA = """fields:
  - {name: age, type: number, unit: years, constraints: {minimum: 18, maximum: 120}}
  - {name: sex, type: string, constraints: {enum: [male, female]}}
  - {name: ecog, type: number, constraints: {minimum: 0, maximum: 4}, missing: mean}
  - {name: karnofsky, type: number, constraints: {minimum: 0, maximum: 100}, missing: mean}
  - {name: calories, type: number, unit: kcal, missing: mean}
  - {name: weight_loss, type: number, unit: lb, missing: mean}
  - {name: status, type: string, constraints: {enum: [alive, dead]}}
target: status
missingValues: ["", NA]
"""
GERMAN = {
    "csv": {"encoding": "cp1252", "missing": ["unbekannt"]},
    "columns": {
        "age": {"from": "alter"},
        "sex": {"from": "geschlecht", "values": {"m": "male", "w": "female"}},
        "ecog": {"from": "ecog_status"},
        "karnofsky": {"from": "karnofsky_index"},
        "calories": {"from": "energie", "scale": 0.25},
        "weight_loss": {"from": "gewichtsverlust", "scale": 2.0},
        "status": {"from": "zustand", "values": {"lebt": "alive", "tot": "dead"}},
    },
}


def institutions() -> dict[str, Any]:
    """Return the clean rows of each institution with ten patients or more."""
    with files("lifelines.datasets").joinpath("lung.csv").open() as file:
        found = pd.read_csv(file)
    found = found[found["inst"].notna()]
    sizes = found["inst"].value_counts()
    rows = {}
    for inst in sorted(sizes[sizes >= 10].index):
        own = found[found["inst"] == inst].reset_index(drop=True)
        rows[f"inst{int(inst):02}"] = pd.DataFrame(
            {
                "age": own["age"],
                "sex": own["sex"].map({1: "male", 2: "female"}),
                "ecog": own["ph.ecog"],
                "karnofsky": own["ph.karno"],
                "calories": own["meal.cal"],
                "weight_loss": own["wt.loss"],
                "status": own["status"].map({0: "alive", 1: "dead"}),
            }
        )
    return rows


def export(path: Path, own: Any, kind: int) -> dict[str, Any]:
    """Write one institution's file in a form of its own, and return what its staff say about it."""
    if kind == 0:
        own[own.columns[::-1]].to_csv(path, index=False, na_rep="NA")
        return {}
    if kind == 1:
        german = own.assign(calories=own["calories"] * 4, weight_loss=own["weight_loss"] / 2)
        german["sex"] = german["sex"].map({"male": "m", "female": "w"})
        german["status"] = german["status"].map({"alive": "lebt", "dead": "tot"})
        german = german.rename(columns={name: origin["from"] for name, origin in GERMAN["columns"].items()})
        german.to_csv(path, index=False, sep=";", decimal=",", na_rep="unbekannt", encoding="cp1252")
        return GERMAN
    own.assign(ward="3b", age=12 * own["age"]).to_csv(path, index=False, sep="\t")
    return {"columns": {"age": {"scale": 1 / 12}}}


def settings_of(path: str | dict[str, str], **more: Any) -> dict[str, Any]:
    known = {"path": path, "schema": "schema.yaml", "standardize": False, "batch_size": 8, **more}
    return {"class_path": "TableDataModule", "init_args": known}


def features(rows: Any) -> np.ndarray:
    columns = (rows["age"], rows["sex"] == "male", rows["sex"] == "female", rows["ecog"], rows["karnofsky"])
    return np.stack([*columns, rows["calories"], rows["weight_loss"]], axis=1).astype(np.float64)


def test_nine_institutions_train_together_to_the_bits_of_the_simulation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("schema.yaml").write_text(SCHEMA)
    rows, paths, exports = institutions(), {}, {}
    assert len(rows) == 9
    for k, (name, own) in enumerate(rows.items()):
        (tmp_path / name).mkdir()
        paths[name] = str(tmp_path / name / "own.csv")
        exports[name] = export(Path(paths[name]), own, k % 3)
        site = {
            "datamodule": settings_of(paths[name], test_share=0, **exports[name]),
            "policy": {**POLICY, "statistics": True, "min_count": 1},  # twelve patients have few of a sex
            "device": "cpu",
        }
        (tmp_path / name / "data.yaml").write_text(yaml.safe_dump(site))
    REGISTERED[:] = sorted(paths)
    TOLD.clear()
    sites_over_bytes.ABSENT.clear()
    for name in paths:
        start_site(tmp_path, name)
    rows["inst01"].head(12).to_csv("server.csv", index=False)
    rows["inst01"].tail(3).to_csv("few.csv", index=False)  # never trained on

    config = configuration()
    network = {"class_path": "MLP", "init_args": {"in_features": 7, "hidden": [8], "num_classes": 2}}
    scaled = {"class_path": "Standardized", "init_args": {"num_features": 7, "network": network}}
    config["model"]["init_args"] |= {"num_classes": 2, "network": scaled}
    config["data"]["datamodule"] = settings_of(paths, exports=exports, test_path="server.csv")
    simulated = simulate(config)
    config["data"]["datamodule"] = settings_of("few.csv", test_path="server.csv")
    Path("config.yaml").write_text(yaml.safe_dump(config))
    pool = ["--federation.pool", "sites_over_bytes.BytesSites", "--trainer.default_root_dir", "real"]
    main(["fit", "--config", "config.yaml", *pool])
    assert same_bits(simulated, weights(Path("real")))

    joined = features(pd.concat(rows.values()))
    found, exact = moments_of(torch.tensor(joined)), joined.astype(np.float32).astype(np.longdouble)
    assert np.allclose(found.means(), np.nanmean(exact, 0).astype(float), rtol=1e-12)
    assert np.allclose(found.deviations(), np.nanstd(exact, 0).astype(float), rtol=1e-12)
    assert simulated["network.mean"].tolist() == torch.tensor(found.means()).tolist()

    net = Standardized(MLP(7, [8], 2), 7).eval()
    net.load_state_dict({name.removeprefix("network."): t for name, t in simulated.items() if name.startswith("network.")})
    data = TableDataModule(paths, schema="schema.yaml", exports=exports, test_share=0, standardize=False)
    data.setup("fit")
    raw = torch.tensor(joined, dtype=torch.float32)
    assert torch.equal(net(raw), net(data.train_set.tensors[0]))  # raw rows with gaps, without any file beside the model
