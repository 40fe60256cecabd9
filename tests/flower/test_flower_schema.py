"""Three hospitals with unlike exports, over real processes of Flower: one schema, pooled scales, noise and budgets."""

from __future__ import annotations

import contextlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from federation_demo import Federation, same_bits, weights
from flower_processes import MARKS
from three_hospitals import NAMES, SCHEMA, SETTINGS, clean, write_exports

from fl_lightning.cli.federation_cli import main
from fl_lightning.functional.privacy import epsilon_of_examples

pytestmark = MARKS
TABLE = {"test_share": 0, "standardize": False, "batch_size": 8}
BUDGET = {"data": "patients", "account": "account.jsonl", "max_epsilon": 30.0, "delta": 1e-5, "protects": "rows"}
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
        (folder / name / "account.jsonl").touch()
        own = {**TABLE, "path": exports[name], **SETTINGS[name]}
        policy: dict[str, Any] = {"federations": "any", "statistics": True, "min_count": 1, "schema": "server"}
        if name == "north":
            (folder / name / "schema.yaml").write_text(SCHEMA)
            own["schema"] = "schema.yaml"
            del policy["schema"]
        site = {"datamodule": {"class_path": "TableDataModule", "init_args": own}, "policy": policy, "device": "cpu"}
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
    table = {**TABLE, "schema": "schema.yaml", "test_path": "test.csv"}
    for name, more in (("real", {}), ("simulated", {"path": exports, "exports": SETTINGS})):
        data = {"datamodule": {"class_path": "TableDataModule", "init_args": {**table, **more}}}
        data |= {} if name == "real" else {"partitioner": "DomainPartitioner"}
        config(federation.folder, f"{name}.yaml", data=data)
    with contextlib.chdir(federation.folder / "server"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(["fit", "--config", "real.yaml", "--trainer.default_root_dir", "real", "--federation.pool", "FlowerPool"])
        main(["fit", "--config", "simulated.yaml", "--trainer.default_root_dir", "simulated"])
        assert same_bits(weights(Path("real")), weights(Path("simulated")))
        assert weights(Path("real"))["network.std"].min() > 0


def test_noise_in_each_step_is_paid_at_each_site_over_flower(hospitals):
    """The sites start again with a budget, which the second of two federations would exceed."""
    federation, _ = hospitals
    noise, rounds = 1.0, 2
    once = epsilon_of_examples(noise, 8 / 30, rounds * 4, 1e-5)
    for name in NAMES:
        path = federation.folder / name / "data.yaml"
        site = yaml.safe_load(path.read_text())
        limit = {"min_noise": 0.5, "budget": {**BUDGET, "max_epsilon": once * 1.01}}
        site["policy"] = {key: value for key, value in site["policy"].items() if key != "statistics"} | limit
        path.write_text(yaml.safe_dump(site, allow_unicode=True))
        federation.sites[name].terminate()
        federation.sites[name].wait(60)
        federation.start_site(name)
    network = CONFIG["model"]["init_args"]["network"]["init_args"]["network"]
    model = {**CONFIG["model"], "init_args": {**CONFIG["model"]["init_args"], "network": network}}
    private = {"noise_multiplier": noise, "max_grad_norm": 1.0, "delta": 1e-5}
    table = {"class_path": "TableDataModule", "init_args": {**TABLE, "schema": "schema.yaml", "test_path": "test.csv"}}
    config(
        federation.folder,
        "private.yaml",
        model=model,
        data={"datamodule": table},
        federation={"local": {"threads": 1, "privacy": private}},
    )
    fit = ("fit", "--config", "private.yaml", "--federation.pool", "FlowerPool", "--trainer.default_root_dir")
    federation.call("server", *fit, "private")
    for name in NAMES:
        paid = [json.loads(line)["release"] for line in (federation.folder / name / "account.jsonl").read_text().splitlines()]
        assert [one["count"] for one in paid] == [4] * rounds
        assert {one["rate"] for one in paid} == {8 / 30}
    with pytest.raises(RuntimeError, match=r"above its 'policy.budget.max_epsilon'"):
        federation.call("server", *fit, "further")
    said = federation.call("north", "site", "budget", "--data", "data.yaml")
    assert f"Together, epsilon {once:.3g} of {once * 1.01:g} is spent on the rows of 'patients'" in said
