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
from fl_lightning.cells import CellSite
from fl_lightning.core.capabilities import rule_of
from fl_lightning.data import TensorLoader
from fl_lightning.data.content import content, loader_content
from fl_lightning.data.torchvision_sets import TorchvisionDataModule
from fl_lightning.functional.description import constructor_arguments
from fl_lightning.server.resume import other_sites


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


def test_rules_name_arguments_only():
    listed = settings_of_this_package()
    assert len(listed) > 150
    assert {rule_of(kind, name) for kind, name in listed} == {"stays", "free", None}
    for kind in {kind for kind, _ in listed}:
        for name in " ".join(vars(kind).get("on_resume", ())).split():
            assert name == "*" or name in constructor_arguments(kind), f"{kind.__name__}.{name}"


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
    ("before", "now", "fixed", "changed"),
    [
        ([("north", 10)], [("north", 10)], True, []),
        ([("north", 10)], [("north", 12)], False, [("site 0", "north with 10 examples", "north with 12 examples", True)]),
        ([("north", 10)], [("south", 10)], False, [("site 0", "north with 10 examples", "south with 10 examples", True)]),
        ([("north", 0)], [("north", 12)], True, []),  # it was never online
        ([("north", 10)], [("north", 0)], True, []),  # it is not online yet
        ([("north", 10), ("west", 5)], [("north", 10)], False, [("site 1", "west with 5 examples", "nothing", True)]),
        ([("north", 10)], [("north", 10), ("west", 5)], False, []),  # it joins
        ([("north", 10)], [("north", 10), ("west", 5)], True, [("site 1", "nothing", "west with 5 examples", True)]),
    ],
)
def test_a_number_belongs_to_a_site_for_ever(before, now, fixed, changed):
    assert [*other_sites(before, now, fixed)] == changed
