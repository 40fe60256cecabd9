"""Three hospitals with unlike exports, over real processes of Flower: one schema and pooled scales."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from federation_demo import Federation, same_bits, weights
from flower_processes import MARKS
from three_hospitals import NAMES, SCHEMA, SETTINGS, clean, in_clients, write_exports

from fl_lightning.cli.federation_cli import main

pytestmark = MARKS
TABLE = {"test_share": 0, "standardize": False, "batch_size": 8}
MLP = {"in_features": 14, "hidden": [5], "num_classes": 3}
CONFIG: dict[str, Any] = {
    "seed_everything": 0,
    "trainer": {"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_progress_bar": False},
    "model": {
        "class_path": "ClassificationTask",
        "init_args": {
            "num_classes": 3,
            "network": {
                "class_path": "fl_lightning.Standardized",
                "init_args": {
                    "network": {
                        "class_path": "fl_lightning.MLP",
                        "init_args": {"in_features": 14, "hidden": [5], "num_classes": 3},
                    },
                    "num_features": 14,
                    "min_count": 1,
                },
            },
            "loss": "CrossEntropy",
            "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
        },
    },
    "federation": {"local": {"threads": 1}},
}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """Start a server and three sites, of which two take the server's schema, and one has a copy."""
    folder = tmp_path_factory.mktemp("hospitals")
    frame, server = clean(), folder / "server"
    server.mkdir()
    exports = write_exports(folder / "exports", frame)
    frame[:20].drop(columns="hospital").to_csv(server / "test.csv", index=False)
    (server / "schema.yaml").write_text(SCHEMA)
    for name in NAMES:
        (folder / name).mkdir()
        own = {**TABLE, "path": exports[name], **SETTINGS[name]}
        policy: dict[str, Any] = {"federations": "any", "tells": ["examples", "steps", "loss", "statistics"], "min_rows": 1}
        if name == "north":
            (folder / name / "schema.yaml").write_text(SCHEMA)
            own["schema"] = "schema.yaml"
        site = {"datamodule": {"class_path": "TableDataModule", "init_args": own}, "policy": policy, "device": "cpu"}
        site |= {} if name == "north" else {"schema": "server"}
        (folder / name / "data.yaml").write_text(yaml.safe_dump(site, allow_unicode=True))
    federation = Federation(folder, NAMES, life=240)
    try:
        federation.serve()
        federation.register()
        for name in NAMES:
            federation.start_site(name)
        yield federation, exports
    finally:
        federation.stop()


def config(folder: Path, name: str, **changes: Any) -> None:
    """Write the configuration of a fit."""
    (folder / "server" / name).write_text(yaml.safe_dump(CONFIG | changes, allow_unicode=True))


def test_unlike_exports_over_flower_give_the_bits_of_the_simulation(hospitals):
    federation, exports = hospitals
    table = {**TABLE, "schema": "schema.yaml"}
    server = {"class_path": "TableDataModule", "init_args": {**table, "test_path": "test.csv"}}
    config(federation.folder, "real.yaml", data={"datamodule": server})
    config(federation.folder, "simulated.yaml", data={"clients": in_clients(exports, **table)})
    with contextlib.chdir(federation.folder / "server"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(["fit", "--config", "real.yaml", "--trainer.default_root_dir", "real", "--federation.pool", "FlowerPool"])
        main(["fit", "--config", "simulated.yaml", "--trainer.default_root_dir", "simulated"])
        assert same_bits(weights(Path("real")), weights(Path("simulated")))
        assert weights(Path("real"))["network.std"].min() > 0
