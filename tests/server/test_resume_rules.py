"""What a resumed run may do with each argument, and what tells data apart."""

from __future__ import annotations

import inspect

import lightning as L
import numpy as np
import pytest
import torch
from resumed_runs import Lazy
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

import fl_lightning
from fl_lightning import (
    FedAvgM,
    FedLoss,
    Focus,
    LocalOnly,
    ShapleyValues,
)
from fl_lightning.core.resume_rule import kind_of
from fl_lightning.data import CellSite, TensorLoader
from fl_lightning.data.content import content, loader_content
from fl_lightning.data.torchvision_sets import TorchvisionDataModule
from fl_lightning.functional.description import Describer, constructor_arguments
from fl_lightning.server.resume.sites import other_sites


def settings_of_this_package() -> list[tuple[type, str]]:
    """Every argument of every class that a federation or its data can be given; modules are compared by their parts."""
    bases = (
        *(fl_lightning.Strategy, fl_lightning.Route, fl_lightning.Transform),
        *(fl_lightning.LabelAttack, fl_lightning.ModelAttack, L.LightningDataModule),
    )
    others = (
        "FederatedOrchestrator LocalTraining PartialWork ExamplePrivacy Faults Availability ClientEvaluation ServerEvaluation"
    )
    others += " Asynchronous Clock SecureAggregation Attackers Backdoor LabelAveraging TransferLearning"
    named = [TorchvisionDataModule, CellSite, *(getattr(fl_lightning, name) for name in others.split())]
    exported = [getattr(fl_lightning, name) for name in fl_lightning.__all__ if name != "__version__"]
    derived = [kind for kind in exported if inspect.isclass(kind) and issubclass(kind, bases)]
    return [(kind, name) for kind in [*named, *derived] for name in constructor_arguments(kind)]


def test_every_argument_has_a_rule():
    listed = settings_of_this_package()
    assert len(listed) > 150
    missing = [f"{kind.__name__}.{name}" for kind, name in listed if kind_of(kind, name) is None]
    assert not missing, f"say in the class's 'on_resume' what a resumed run may do with: {missing}"


def test_rules_name_arguments_only():
    for kind in {kind for kind, _ in settings_of_this_package()}:
        known = {name for base in kind.__mro__ if base is not object for name in constructor_arguments(base)}
        for name in " ".join(kind.on_resume).split():
            assert name == "*" or name in known, f"{kind.__name__}.{name}"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (FedLoss("mine"), {"loss": "mine", "examples": 0}),
        (Focus("mine"), {"loss": "mine", "temperature": 1, "credibility": "complement"}),
        (LocalOnly("mine", "min"), {"metric": "mine", "mode": "min"}),
        (
            ShapleyValues("mine", "min"),
            {"metric": "mine", "mode": "min", "exact_up_to": 6, "orders": 20, "tolerance": 0.01, "seed": 0},
        ),
        (FedAvgM(0.5), {"momentum": 0.5, "lr": 1, "weighting": "examples"}),
    ],
)
def test_arguments_are_described_under_their_names(made, expected):
    described = Describer().describe(made, "it")
    assert described.pop("class").endswith(type(made).__name__)
    assert described == expected


# ------------------------------------------------------------------ contents


class Files(Dataset):
    """Images in files, as torchvision lists them."""

    def __init__(self, folder: str, names: tuple[str, ...] = ("a.png", "b.png")) -> None:
        self.samples = [(f"{folder}/cats/{name}", 0) for name in names]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.zeros(3, dtype=np.float32)


def test_contents_tell_datasets_apart():
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    whole = TensorDataset(x, y)
    same = TensorDataset(x.clone(), y.clone())
    different = [
        TensorDataset(x + 1e-6 * (x == 3), y),
        TensorDataset(x, y.int()),
        TensorDataset(x.reshape(6, 1, 2), y),
        TensorDataset(x.flip(0), y.flip(0)),
        Subset(whole, [0, 1, 2]),
        Subset(whole, [0, 1, 3]),
        ConcatDataset([whole, whole]),
        Lazy(),
        Lazy(scale=1.01),
        Files("/here"),
        Files("/here", ("a.png", "c.png")),
    ]
    texts = [content(dataset)[0] for dataset in [whole, *different]]
    assert len(set(texts)) == len(texts)
    assert content(same) == content(whole) == (texts[0], True)
    assert content(Files("/elsewhere")) == content(Files("/here"))  # a folder that moved is the same data
    assert content(Lazy(noise=True)) == (content(Lazy(noise=True))[0], False)
    assert texts[0].startswith("6 examples (")


def test_evaluation_loaders_are_compared_by_what_they_read():
    tensors = torch.arange(8.0), torch.arange(8)
    part = TensorLoader(tensors, 3, torch.tensor([1, 2]))
    found = [loader_content(loaders)[0] for loaders in (TensorLoader(tensors, 3), part, [part, part])]
    assert [text.split(" (")[0] for text in found] == ["8 examples", "2 examples", "2 examples"]
    assert len(set(found)) == 3
    assert loader_content(DataLoader(TensorDataset(*tensors), 5))[1]
    assert loader_content(iter(())) == ("tuple_iterator", False)


@pytest.mark.parametrize(
    ("before", "now", "problems"),
    [
        (10, 10, []),
        (10, 12, ["Site north had 10 training examples when the checkpoint was written, but has 12 now."]),
        (0, 12, []),  # it was never online
        (10, 0, []),  # it is not online yet
    ],
)
def test_a_site_keeps_its_number_of_examples(before, now, problems):
    assert other_sites([("north", before), ("south", 7)], [("north", now), ("south", 7)]) == problems
