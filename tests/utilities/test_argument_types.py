"""In Python, an argument of a wrong type is refused where it is given; the messages are in the table of refusals."""

import copy
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from federations import Blobs
from lightning.pytorch import LightningDataModule

import fl_lightning as fl
from fl_lightning.utilities.argument_types import fits, in_words


def test_what_fits_is_taken():
    """Numbers of NumPy, paths, tuples for lists, and None where it is allowed."""
    assert fl.IIDPartitioner(np.int64(3)).num_clients == 3
    assert fl.DirichletPartitioner(num_clients=2, beta=np.float32(0.5)).beta == 0.5
    assert fl.FederatedOrchestrator(
        transforms=(fl.ClipUpdate(1.0),), personal=[fl.PersonalPart(names="a")], clients_per_round=1
    ).enabled
    assert fl.FederatedOrchestrator(None, server_optimizer=torch.optim.Adam, client_evaluation=fl.ClientEvaluation()).seed == 0
    assert fl.Attackers(model=fl.SignFlip(), clients=[0]).clients == [0]
    assert copy.deepcopy(fl.LocalTraining(max_epochs=2)) == pickle.loads(pickle.dumps(fl.LocalTraining(max_epochs=2)))


def test_other_peoples_classes_may_annotate_as_they_like():
    class Loose(fl.IIDPartitioner):
        def __init__(self, num_clients: int = 1.5, seed: str = 0) -> None:
            super().__init__(2, seed=seed)

    assert Loose(num_clients=None).num_clients == 2


@pytest.mark.parametrize(
    ("value", "wanted", "expected"),
    [
        (3, float, True),
        (True, int, False),
        (np.bool_(True), bool, False),
        (Path("a"), str, True),
        ({"a": 1}, dict[str, float], True),
        ({"a": "b"}, Mapping[str, float], False),
        ([1, None], list[int | None], True),
        ([1, "2"], Sequence[int], False),
        ("12", list[int], False),
        (torch.zeros(2), list[float], True),
        (len, Callable[[Any], int], True),
        (3, Callable, False),
        ("other", Literal["a", "b"], True),  # the class lists its choices itself
        (3, Any, True),
        (int, type[int], True),
        (Blobs, LightningDataModule, False),
    ],
)
def test_types(value, wanted, expected):
    assert fits(value, wanted) is expected


def test_types_in_words():
    assert in_words(int | float | None) == "a finite number or None"
    assert in_words(Literal["a", 1]) == "'a' or 1"
    assert in_words(dict[str, int]) == "a dictionary"


class Parts(fl.Partitioner):
    needs_labels = False

    def __init__(self, parts: Any) -> None:
        self.parts = parts

    def partition(self, num_examples: int, labels: Any) -> Any:
        return self.parts


def test_a_partitioner_may_return_lists_and_arrays():
    parts = [[0, 1, 2], np.arange(3, 8), range(8, 10), torch.tensor([11], dtype=torch.int32)]
    data = fl.FederatedDataModule(Blobs(12), Parts(parts))
    data.setup("fit")
    assert data.indices.sizes.tolist() == [3, 5, 2, 1]
