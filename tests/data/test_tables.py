"""Numbers in CSV files: what is read, how it is divided and standardised, and what a user is told."""

import contextlib
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import ROOT
from federations import ready
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import LabelEncoder, StandardScaler
from small_tables import lines, numbers, set_up, write

from fl_lightning import ConfigurationError, DataError, DomainPartitioner, FederatedDataModule, IIDPartitioner, TableDataModule


@pytest.fixture
def folder():
    """Three clients of 12, 30 and 5 rows."""
    for name, rows in (("zoe", 12), ("ann", 30), ("bob", 5)):
        write(f"clients/{name}.csv", "a,b,c,target", *lines(numbers(rows, rows)))
    write("clients/notes.txt", "nothing to read")
    write("clients/.hidden.csv", "x")
    return "clients"


# ------------------------------------------------------------------ what is read


def test_a_file_for_each_client_by_name(folder):
    """A folder's files all belong to its client."""
    write("more/bob.csv", "a,b,c,target", *lines(numbers(5, 5)))
    write("more/eve.csv", "a,b,c,target", *lines(numbers(3, 3)))
    paths = {"ward 1": "clients/ann.csv", "ward 0": Path("clients/zoe.csv"), "ward 2": "more"}
    rows = set_up(paths, standardize=False, test_share=0.0).train_set
    assert rows.domains_names == ("ward 0", "ward 1", "ward 2")
    assert torch.bincount(rows.domains).tolist() == [12, 30, 8]
    expected = np.concatenate([numbers(n, n)[:, :3] for n in (12, 30, 5, 3)])
    np.testing.assert_allclose(rows.tensors[0], expected, rtol=1e-6)


@pytest.mark.slow
def test_names_of_clients_in_yaml_are_texts_as_written(folder, fl):
    names = ["'010'", "'8'", "08", "'no'", "'12:30'", "1e3x", "'1e3'", "'null'", "'~'", "2024-01-01", "'.5'", "'0x10'", "'1_0'"]
    paths = ", ".join(f"{name}: clients/ann.csv" for name in [*names, "ward 1"])
    write("names.yaml", f"data: {{datamodule: {{init_args: {{path: {{{paths}}}, client_column: null}}}}}}")
    status, text = fl("partition", "--config", str(ROOT / "configs/data/table.yaml"), "--config", "names.yaml")
    assert status == 0, text
    assert f"\n{len(names) + 1} clients, " in text
    assert {name.strip("'") for name in names} <= {line.split(" ")[0] for line in text.splitlines()}
    assert "ward 1" in text


def test_a_folder_has_a_client_for_each_file(folder):
    base = TableDataModule(Path(folder), standardize=False, test_share=0.0)
    data = ready(FederatedDataModule(base, DomainPartitioner()))
    assert [data.client_name(k) for k in range(data.num_clients)] == ["ann", "bob", "zoe"]
    assert data.indices.sizes.tolist() == [30, 5, 12]
    inputs, targets = base.train_set.tensors
    assert inputs.dtype == targets.dtype == torch.float32
    for k, rows in enumerate((30, 5, 12)):
        np.testing.assert_allclose(inputs[data.indices[k]], numbers(rows, rows)[:, :3], rtol=1e-6)
        np.testing.assert_allclose(targets[data.indices[k]], numbers(rows, rows)[:, 3], rtol=1e-6)
    assert base.feature_names == base.train_set.feature_names == ("a", "b", "c")
    assert base.origin == "clients (47 rows, 3 features, 3 clients)"
    mixed = ready(FederatedDataModule(base, IIDPartitioner(4)))
    assert mixed.indices.sizes.tolist() == [12, 12, 12, 11]


def test_a_column_names_the_clients():
    """As the csv module and a spreadsheet write: quotes, a byte order mark, spaces, empty lines, upper case."""
    text = '\ufeff"b", site ,target,a\r\n1,"north, 1",2,3\r\n\r\n-4, south,5e-1,6\r\n7,"north, 1",8,9\r\n'
    Path("one.CSV").write_text(text, newline="")
    data = set_up("one.CSV", client_column="site", standardize=False, test_share=0.0)
    assert data.feature_names == ("b", "a")
    inputs, targets = data.train_set.tensors
    assert inputs.tolist() == [[1, 3], [-4, 6], [7, 9]]
    assert targets.tolist() == [2, 0.5, 8]
    assert data.train_set.domains_names == ("north, 1", "south")
    assert data.train_set.domains.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "labels", [["dog", "Cat", "emu", "dog"], ["10", "9", "-1", "9.0"], ["2", "x", "10", "x"], ["nan", "2", "10", "inf"]]
)
def test_classes_are_coded_in_sorted_order(labels):
    write("x.csv", "a,kind", *(f"{k},{label}" for k, label in enumerate(labels)))
    data = set_up("x.csv", target="kind", kind="classification", test_share=0.0)
    targets = data.train_set.tensors[1]
    assert targets.dtype == torch.int64
    plain = [float(label) for label in labels] if labels[0] == "10" else labels
    encoder = LabelEncoder()
    assert targets.tolist() == encoder.fit_transform(plain).tolist()
    assert data.train_set.classes == tuple(f"{name:g}" if labels[0] == "10" else str(name) for name in encoder.classes_)


@pytest.mark.parametrize("pair", [("BENIGN", "benign"), ("100", "1e2"), ("1.5", "1.50"), ("+1", "1")])
def test_classes_that_may_be_the_same_are_named(pair):
    write("x.csv", "a,kind", f"1,{pair[1]}", f"2,{pair[0]}", "3,7")
    said = f"'kind' of 'x.csv' has the classes '{pair[0]}', '{pair[1]}', which differ only in capital letters or in how a num"
    with pytest.warns(UserWarning, match=re.escape(said)):
        set_up("x.csv", target="kind", kind="classification", test_share=0.0)


# ------------------------------------------------------------------ what is done to it


def test_the_training_part_standardises():
    values = numbers(200)
    write("x.csv", "a,b,c,target", *lines(values))
    data = set_up("x.csv", test_share=0.3, seed=3)
    inputs, targets = data.train_set.tensors
    (held, held_targets), *others = data.val_dataloader()
    assert not others
    assert len(inputs) == 140
    assert len(held) == 60
    train, test = (np.abs(part.numpy()[:, None] - values[:, 3]).argmin(axis=1) for part in (targets, held_targets))
    assert sorted([*train, *test]) == list(range(200))
    scaler = StandardScaler().fit(values[train, :3])
    np.testing.assert_allclose(inputs[:, :2], scaler.transform(values[train, :3])[:, :2], atol=1e-5)
    np.testing.assert_allclose(held[:, :2], scaler.transform(values[test, :3])[:, :2], atol=1e-5)
    assert (inputs[:, 2].abs() < 1e-6).all()  # the constant one
    np.testing.assert_allclose(data.mean, scaler.mean_)
    np.testing.assert_allclose(data.std, [*np.sqrt(scaler.var_[:2]), 1.0])
    np.testing.assert_allclose(targets, values[train, 3], rtol=1e-6)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.floats(0.05, 0.95), st.integers(0, 3))
def test_the_test_share_is_each_clients(sizes, share, seed):
    rows = [f"{k},{client}" for k, client in enumerate(np.repeat(range(len(sizes)), sizes))]
    random.Random(seed).shuffle(rows)
    path = write(Path("drawn") / "x.csv", "a,client", *rows)
    data = TableDataModule(path, None, test_share=share, client_column="client", standardize=False, seed=seed)
    if max(sizes) == 1:
        with pytest.raises(ConfigurationError, match=r"'data.datamodule.test_share' must be 0 if no client has several rows"):
            data.setup("fit")
        return
    data.setup("fit")
    held = torch.cat([batch for (batch,) in data.test_dataloader()])
    together = torch.cat([data.train_set.tensors[0], held]).flatten().sort().values
    assert together.tolist() == list(range(sum(sizes)))
    left = torch.bincount(data.train_set.domains, minlength=len(sizes)).tolist()
    taken = [size - rest for size, rest in zip(sizes, left, strict=True)]
    wanted = [min(size - 1, float(np.float64(share) * size)) for size in sizes]
    assert min(left) >= 1
    assert sum(taken) >= 1
    if sum(taken) > 1:
        assert all(abs(took - want) <= 0.5 for took, want in zip(taken, wanted, strict=True))
    again = ready(TableDataModule(path, None, test_share=share, client_column="client", standardize=False, seed=seed))
    assert torch.equal(again.train_set.tensors[0], data.train_set.tensors[0])


def test_the_test_share_keeps_the_classes_and_the_global_random_state():
    write("x.csv", "a,target", *(f"{k},{'rare' if k % 5 == 0 else 'common'}" for k in range(100)))
    state = torch.get_rng_state()
    data, other = (set_up("x.csv", kind="classification", test_share=0.25, seed=seed) for seed in (0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    (_, labels), *_ = data.val_dataloader()
    assert torch.bincount(labels).tolist() == [20, 5]
    assert not torch.equal(data.train_set.tensors[0], other.train_set.tensors[0])


def test_a_test_file_of_its_own(folder):
    rows = numbers(9, 4)
    write("held.csv", "target,c,b,a", *lines(rows[:, ::-1]))
    data = set_up(folder, test_path="held.csv", eval_batch_size=4)
    assert len(data.train_set) == 47
    held, targets = (torch.cat(parts) for parts in zip(*data.test_dataloader(), strict=True))
    everything = np.concatenate([numbers(n, n) for n in (30, 5, 12)])[:, :3]
    np.testing.assert_allclose(held[:, :2], StandardScaler().fit(everything).transform(rows[:, :3])[:, :2], atol=1e-5)
    np.testing.assert_allclose(targets, rows[:, 3], rtol=1e-6)
    write("many/one.csv", "a,b,c,target", "1,2,3,4")
    write("many/two.csv", "a,b,c,target", "1,2,3,4", "5,6,7,8")
    assert sum(len(x) for x, _ in set_up(folder, test_path="many").val_dataloader()) == 3
    write("one.csv", "a,site,target", "1,n,2", "3,s,5")
    write("other.csv", "a,target", "1,2")
    assert len(set_up("one.csv", client_column="site", test_path="other.csv").train_set) == 2


def test_without_a_test_set_clients_parts_may_be_one(folder):
    data = TableDataModule(folder, test_share=0.0)
    assert not FederatedDataModule(data, DomainPartitioner()).has_validation_set
    parts = ready(FederatedDataModule(data, DomainPartitioner(), 0, 0.2, "clients"))
    assert sum(len(x) for x, _ in parts.val_dataloader()) == 6 + 1 + 2


@given(st.text(max_size=60))
def test_any_text_is_a_table_or_a_message(text):
    Path("any.csv").write_text(text, encoding="utf-8", errors="replace", newline="")
    data = TableDataModule("any.csv", target=None, test_share=0.0)
    with contextlib.suppress(DataError):  # anything else is a failure
        data.setup("fit")
        assert torch.isfinite(data.train_set.tensors[0]).all()
