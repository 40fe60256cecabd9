"""Numbers of classes: sets whose names differ are refused wherever they meet, and a setting names classes that a set lacks."""

import json
import re
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
from federations import Plain, trainer
from hypothesis import given
from hypothesis import strategies as st
from small_images import paint
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from fl_lightning import (
    ConfigurationError,
    DataError,
    FederatedDataModule,
    FederatedOrchestrator,
    IIDPartitioner,
    ImageFolderDataModule,
    TableDataModule,
)
from fl_lightning.data.labels import class_name, names_of, ordered_classes


def named(labels: Any, **names: Any) -> TensorDataset:
    """Examples with four features whose classes, or features, have names."""
    dataset = TensorDataset(torch.randn(len(labels), 4), torch.tensor(labels))
    vars(dataset).update(names)
    return dataset


def fit(data: Any) -> L.Trainer:
    run = trainer(1, FederatedOrchestrator())
    run.fit(Plain(), data)
    return run


AB, BC, ABC = ("a", "b"), ("b", "c"), ("a", "b", "c")


@pytest.mark.parametrize("kind", ["classes", "feature_names"])
@pytest.mark.parametrize("where", ["clients", "server", "own sets"])
def test_clients_and_sets_with_other_names_are_refused(kind, where):
    """Sites that saw b and c, and a server with a, b and c: class 0 is b here and a there."""
    one, other = named([0, 1, 0, 1], **{kind: BC}), named([0, 1, 1, 0], **{kind: ABC})
    val: Any = {"clients": None, "server": other, "own sets": {"north": one, "south": other}}[where]
    data = FederatedDataModule.from_clients({"north": one, "south": other if where == "clients" else one}, val=val)
    with pytest.raises(DataError) as caught:
        fit(data)
    said = {"clients": "the training set of client 'south'", "server": "the server's validation set"}
    assert "training set of client 'north'" in str(caught.value)
    assert said.get(where, "the validation set of client 'south'") in str(caught.value)
    assert "b, c" in str(caught.value)
    assert "('a' is only in one of them)" in str(caught.value)


def test_equal_names_and_sets_without_names_are_not_refused():
    sets = {"north": named([0, 1], classes=AB), "south": named([1, 1], classes=AB), "west": named([0, 0])}
    assert fit(FederatedDataModule.from_clients(sets, val=named([0, 1], classes=AB))).global_step == 1


@pytest.mark.parametrize("several", [False, True])
def test_a_datamodule_whose_sets_number_classes_differently_is_refused(several):
    both = L.LightningDataModule()
    val = DataLoader(named([0, 1], classes=ABC), batch_size=2)
    both.train_dataloader = lambda: DataLoader(named([0, 1, 1, 0], classes=BC), batch_size=2)
    both.val_dataloader = lambda: [val] if several else val
    with pytest.raises(DataError, match=r"The training set has the classes b, c, but the set of 'val_dataloader' has a, b, c"):
        fit(FederatedDataModule(both, IIDPartitioner(2)))


class Faces(Dataset[Any]):
    """As Hugging Face's datasets name classes."""

    class Label:
        names = list(AB)

    features = {"image": None, "label": Label()}


def test_where_names_are_found():
    plain, other = named([0, 1], classes=list(AB)), named([1], classes=BC)
    assert names_of(DataLoader(Subset(plain, [0])), "classes") == AB
    assert names_of(ConcatDataset([plain, plain]), "classes") == AB
    assert names_of(ConcatDataset([plain, other]), "classes") is None
    assert names_of(Faces(), "classes") == AB
    for strange in (3, [1, 2], [], "ab", None):
        assert names_of(named([0], classes=strange), "classes") is None


# ---------------------------------------------------------------- the setting


def write(path: str, *labels: str) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{k},{k * k},{label}" for k, label in enumerate(labels)]
    Path(path).write_text("\n".join(["age,dose,outcome", *rows]) + "\n")
    return path


def table(path: Any, **more: Any) -> TableDataModule:
    data = TableDataModule(path, "outcome", kind="classification", **more)
    data.setup("fit")
    return data


def test_a_table_may_lack_a_class_that_the_setting_names():
    """Without it, b and c would be classes 0 and 1. The order is the setting's, and numbers are names, too."""
    data = table(write("own.csv", *"bcbcb"), test_share=0.0, classes=["a", "b", "c"])
    assert data.train_set.tensors[1].tolist() == [1, 2, 1, 2, 1]
    assert names_of(data.train_set, "classes") == ABC
    one = table(write("one.csv", *"bbb"), test_share=0.0, classes=["a", "b"])
    assert one.train_set.tensors[1].tolist() == [1, 1, 1]
    test = table("own.csv", test_path=write("test.csv", *"aab"), classes=["a", "b", "c"])
    assert test.val_dataloader().tensors[1].tolist() == [0, 0, 1]
    numbers = table(write("own.csv", "1.0", "2", "01", "10"), test_share=0.0, classes=[10, 1, 2])
    assert numbers.train_set.tensors[1].tolist() == [1, 2, 1, 0]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["1", "1.0", "01", "001.00", "2"], ["1", "1", "1", "1", "2"]),
        (["-1", "-01.0", "0", "-0", "-0.0"], ["-1", "-1", "0", "0", "0"]),
        (["1_1", "11", "2_1", "21"], ["1_1", "11", "2_1", "21"]),
        (["9007199254740993", "9007199254740992", "9007199254740993.0"], [f"900719925474099{k}" for k in (3, 2, 3)]),
        (["10" + 40 * "0", "9" * 41], ["10" + 40 * "0", "9" * 41]),
        (["1e2", "100", "1.50", "1.5", "+1", "1"], ["1e2", "100", "1.50", "1.5", "+1", "1"]),
        (["\u0661", "1", "Inf", "inf", "True", "true"], ["\u0661", "1", "Inf", "inf", "True", "true"]),
    ],
)
def test_classes_are_as_written_but_1_and_1_0_and_01_are_one(labels, classes):
    """Without a schema, and as the categories of one; cells without spaces around them, as everywhere."""
    data = table(write("own.csv", *(f" {label} " for label in labels)), test_share=0.0)
    assert [data.train_set.classes[code] for code in data.train_set.tensors[1]] == classes
    enum = sorted(set(classes))
    fields = [{"name": "age", "type": "number"}, {"name": "outcome", "type": "string", "constraints": {"enum": enum}}]
    Path("schema.json").write_text(json.dumps({"fields": fields, "target": "outcome"}))
    described = TableDataModule("own.csv", schema="schema.json", test_share=0.0)
    with pytest.warns(UserWarning, match="'own.csv' has dose"):
        described.setup("fit")
    assert [enum[code] for code in described.train_set.tensors[1]] == classes


def test_a_column_of_whole_floats_has_the_classes_and_persons_of_one_of_whole_numbers():
    """pandas makes floats of whole numbers with a gap; Arrow writes large ones as 1e+16."""
    whole, floats = [1, 10**16, 0, -3], np.array([1.0, 1e16, -0.0, -3.0])
    for name, column in (("whole", whole), ("floats", floats)):
        pd.DataFrame({"age": range(4), "outcome": column, "person": column}).to_parquet(f"{name}.parquet")
    data = table({"a": "whole.parquet", "b": "floats.parquet"}, person_column="person", test_share=0.0)
    assert data.train_set.classes == ("-3", "0", "1", "10000000000000000")
    assert data.train_set.tensors[1].tolist() == [2, 3, 1, 0] * 2
    assert data.train_set.persons[:4].tolist() == data.train_set.persons[4:].tolist()


def test_a_large_number_of_a_parquet_column_is_the_category_that_it_is():
    """As a float, it would be the other one."""
    pd.DataFrame({"code": [2**53 + 1, 2**53], "n": [1.0, 2.0]}).to_parquet("codes.parquet")
    fields = [{"name": "code", "type": "integer", "constraints": {"enum": [str(2**53), str(2**53 + 1)]}}]
    Path("schema.json").write_text(json.dumps({"fields": [*fields, {"name": "n", "type": "number"}]}))
    data = TableDataModule("codes.parquet", schema="schema.json", test_share=0.0, standardize=False)
    data.setup("fit")
    assert data.train_set.tensors[0].tolist() == [[0, 1, 1], [1, 0, 2]]


def test_classes_that_are_missing_or_wrong_are_named():
    with pytest.raises(DataError, match=r"holds 'a', which is not a category of 'outcome' \(b, c\)\. Correct the cell, add"):
        table(write("own.csv", *"bcb"), test_path=write("test.csv", *"ab"))
    with pytest.raises(DataError, match=r"single class 'b', but classification needs two or more. Name all classes in"):
        table(write("own.csv", *"bbb"))
    for wrong in (["a"], ["a", "a"], [1, "1.0"], []):
        with pytest.raises(ConfigurationError, match=r"'data.datamodule.classes' must be two or more names, each once"):
            TableDataModule("own.csv", "outcome", kind="classification", classes=wrong)
    with pytest.raises(ConfigurationError, match=r"must be null without 'kind: classification'"):
        TableDataModule("own.csv", "outcome", classes=["a", "b"])


@given(st.lists(st.one_of(st.integers(-5, 5).map(str), st.text(max_size=3)), min_size=1))
def test_names_are_ordered_once_each(names):
    """Text would order 1_1 before 9; floats cannot tell large numbers apart."""
    assert ordered_classes(["100", "9", "1e2", "-1"]) == ("-1", "9", "100", "1e2")
    assert ordered_classes(["10000000000000000", "9999999999999999"]) == ("9999999999999999", "10000000000000000")
    assert ordered_classes(["9", "1_1"]) == ("1_1", "9")
    found = ordered_classes([class_name(name) for name in names])
    assert set(found) == {class_name(name) for name in names}
    assert list(found) == sorted(found, key=int if all(re.fullmatch("-?[0-9]+", name) for name in found) else str)


def folders(root: str, **classes: int) -> None:
    for name, count in classes.items():
        paint(Path(root) / name, count)


def test_folders_of_images_may_lack_a_class_that_the_setting_names():
    """They are named as they are written."""
    folders("images/train", **{"01": 2, "1_1": 3})
    folders("images/test", **{"11": 1, "01": 1, "1_1": 1})
    with pytest.raises(
        DataError, match=r"has the classes 01, 1_1, but 'images/test' has 01, .* \('11' is only in one of them\)"
    ):
        ImageFolderDataModule("images").setup("fit")
    data = ImageFolderDataModule("images", classes=["11", "01", "1_1"])
    data.setup("fit")
    assert names_of(data.train_dataloader(), "classes") == ("11", "01", "1_1")
    assert data.train_dataloader().dataset.tensors[1].bincount().tolist() == [0, 2, 3]
    assert data.val_dataloader().tensors[1].tolist() == [0, 1, 2]
    with pytest.raises(DataError, match=r"the class '1_1', which is not one of 'data.datamodule.classes'"):
        ImageFolderDataModule("images/train", classes=["11", "01"]).setup("fit")
