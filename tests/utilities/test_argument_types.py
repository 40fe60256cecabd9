"""In Python, an argument of a wrong type is refused where it is given, by a message that says what to write."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from federations import Blobs, Consecutive
from lightning.pytorch import LightningDataModule
from torch.utils.data import TensorDataset

from fl_lightning import (
    AdaFed,
    Attackers,
    ClientEvaluation,
    ClipUpdate,
    ConfigurationError,
    DataError,
    DirichletPartitioner,
    FedAvg,
    FederatedDataModule,
    FederatedOrchestrator,
    IIDPartitioner,
    LocalTraining,
    Partitioner,
    PersonalPart,
    RingFed,
    SignFlip,
    TablePartitioner,
    WeightedAverage,
)
from fl_lightning.utilities.argument_types import fits, in_words

CASES: dict[str, tuple[Callable[[], object], str]] = {
    "a name": (
        lambda: FederatedOrchestrator("FedAvg"),
        "'strategy' must be a Strategy or None, but is 'FedAvg' (a str). Write FedAvg(...).",
    ),
    "a name that is nearly one": (lambda: FederatedOrchestrator("adafet"), "but is 'adafet' (a str). Write AdaFed(...)."),
    "the beginning of a name": (
        lambda: FederatedDataModule(Blobs(), "iid"),
        "'partitioner' must be a Partitioner or None, but is 'iid' (a str). Write IIDPartitioner(...).",
    ),
    "a class": (
        lambda: FederatedOrchestrator(FedAvg),
        "'strategy' must be a Strategy or None, but is the class FedAvg. Write FedAvg().",
    ),
    "a class of clients": (
        lambda: FederatedDataModule(Blobs(), IIDPartitioner),
        "but is the class IIDPartitioner. Write IIDPartitioner().",
    ),
    "a class of data": (
        lambda: FederatedDataModule(Blobs, IIDPartitioner(2)),
        "'data.datamodule' must be a LightningDataModule, but is the class Blobs. Write Blobs().",
    ),
    "a number of clients": (
        lambda: FederatedDataModule(Blobs(), 8),
        "FederatedDataModule: 'partitioner' must be a Partitioner or None, but is 8 (an int).",
    ),
    "a whole float": (
        lambda: IIDPartitioner(4.0),
        "IIDPartitioner: 'num_clients' must be a whole number, but is 4.0 (a float). Write 4.",
    ),
    "a part": (
        lambda: LocalTraining(max_epochs=1.5),
        "LocalTraining: 'max_epochs' must be a whole number, but is 1.5 (a float).",
    ),
    "settings as a dictionary": (
        lambda: FederatedOrchestrator(local={"max_epochs": 2}),
        "'local' must be a LocalTraining, but is {'max_epochs': 2} (a dict). Write LocalTraining(max_epochs=2).",
    ),
    "settings as a flag": (
        lambda: FederatedOrchestrator(client_evaluation=True),
        "'client_evaluation' must be a ClientEvaluation, but is True (a bool). Write ClientEvaluation(...).",
    ),
    "a text for a number": (
        lambda: FederatedOrchestrator(clients_per_round="half"),
        "'clients_per_round' must be a number, but is 'half' (a str).",
    ),
    "a flag for a number": (
        lambda: FederatedOrchestrator(clients_per_round=True),
        "'clients_per_round' must be a number, but is True (a bool).",
    ),
    "a text as a seed": (lambda: FederatedOrchestrator(seed="a"), "'seed' must be a whole number, but is 'a' (a str)."),
    "an optimizer's name": (
        lambda: FederatedOrchestrator(server_optimizer="adam"),
        "'server_optimizer' must be a function or None, but is 'adam' (a str).",
    ),
    "a power": (lambda: AdaFed(power="2"), "AdaFed: 'power' must be a number, but is '2' (a str)."),
    "one of a list": (
        lambda: FederatedOrchestrator(transforms=ClipUpdate(1.0)),
        "'transforms' must be a list of Transform objects or None, but is a ClipUpdate. Put it in a list.",
    ),
    "a text for a list": (
        lambda: FederatedOrchestrator(personal="net.3"),
        "'personal' must be a list of PersonalPart objects or None, but is 'net.3' (a str). Write [PersonalPart(...)].",
    ),
    "a setting of settings": (
        lambda: Attackers(model="SignFlip"),
        "Attackers: 'model' must be a ModelAttack or None, but is 'SignFlip' (a str). Write SignFlip(...).",
    ),
    "a route": (lambda: RingFed(periods="2"), "RingFed: 'periods' must be a whole number, but is '2' (a str)."),
    "a table": (lambda: TablePartitioner("counts.csv"), "TablePartitioner: 'counts' must be a list of"),
    "clients without names": (
        lambda: FederatedDataModule.from_clients([TensorDataset(torch.zeros(4))]),
        "The clients' data are a list, but must be a dictionary with each client's data by name. Write Federated",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_types_are_refused(case):
    make, said = CASES[case]
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert said in str(caught.value)


def test_what_fits_is_taken():
    """Numbers of NumPy, paths, tuples for lists, and None where it is allowed."""
    assert IIDPartitioner(np.int64(3)).num_clients == 3
    assert DirichletPartitioner(num_clients=2, beta=np.float32(0.5)).beta == 0.5
    assert FederatedOrchestrator(transforms=(ClipUpdate(1.0),), personal=[PersonalPart(names="a")], clients_per_round=1).enabled
    assert FederatedOrchestrator(None, server_optimizer=torch.optim.Adam, client_evaluation=ClientEvaluation()).seed == 0
    assert Attackers(model=SignFlip(), clients=[0]).clients == [0]
    assert copy.deepcopy(LocalTraining(max_epochs=2)) == pickle.loads(pickle.dumps(LocalTraining(max_epochs=2)))


def test_python_names_an_unknown_argument():
    with pytest.raises(TypeError, match="unexpected keyword argument 'clients'"):
        IIDPartitioner(clients=3)


def test_other_peoples_classes_may_annotate_as_they_like():
    class Loose(IIDPartitioner):
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
        (3, Annotated[str, "doc"], False),
        ("other", Literal["a", "b"], True),  # the class lists its choices itself
        (3, Any, True),
        (int, type[int], True),
        (Blobs, LightningDataModule, False),
    ],
)
def test_types(value, wanted, expected):
    assert fits(value, wanted) is expected


def test_types_in_words():
    assert in_words(int | float | None) == "a number or None"
    assert in_words(Literal["a", 1]) == "'a' or 1"
    assert in_words(dict[str, int]) == "a dictionary"
    assert in_words(Annotated[list[int], "doc"]) == "a list of whole numbers"


# ---------------------------------------------------------------- what classes of one's own return


class Parts(Partitioner):
    needs_labels = False

    def __init__(self, parts: Any) -> None:
        self.parts = parts

    def partition(self, num_examples: int, labels: Any) -> Any:
        return self.parts


def sizes(parts: Any) -> list[int]:
    data = FederatedDataModule(Blobs(12), Parts(parts))
    data.setup("fit")
    return data.indices.sizes.tolist()


def test_a_partitioner_may_return_lists_and_arrays():
    assert sizes([[0, 1, 2], np.arange(3, 8), range(8, 10), torch.tensor([11], dtype=torch.int32)]) == [3, 5, 2, 1]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (torch.ones(12, dtype=torch.bool), r"a tensor of torch.bool of shape \(12,\)"),
        (torch.zeros(2, 2, dtype=torch.int64), r"a tensor of torch.int64 of shape \(2, 2\)"),
        ([0.5, 1.0], r"\[0.5, 1.0\]"),
        ("abc", "'abc'"),
        (3, "3"),
    ],
)
def test_a_partitioner_that_returns_something_else(part, said):
    with pytest.raises(DataError, match=rf"Parts gave client 1 {said}\. Return the indices of each client's examples"):
        sizes([torch.arange(2), part])


class Scored(WeightedAverage):
    def weight(self, update: Any) -> Any:
        return update.score


def test_a_strategy_that_reads_a_score_without_a_metric():
    from federations import Plain, federate

    with pytest.raises(
        ConfigurationError, match=r"Scored\.weight returns None, but must return a number\. 'update\.score' is known"
    ):
        federate(Plain(), 1, strategy=Scored(), data=Blobs(), partitioner=Consecutive())
