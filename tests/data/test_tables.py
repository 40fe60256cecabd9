"""Numbers in CSV files: what is read, how it is divided and standardised, and what a user is told."""

from __future__ import annotations

import contextlib
import csv
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch.demos.boring_classes import BoringDataModule
from sklearn.preprocessing import LabelEncoder, StandardScaler

from fl_lightning import (
    ConfigurationError,
    DataError,
    DomainPartitioner,
    FederatedDataModule,
    IIDPartitioner,
    ImageFolderDataModule,
    TableDataModule,
)
from fl_lightning.flower.pool import FlowerPool


def write(path: Path | str, *lines: str) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("\n".join(lines) + "\n")
    return str(path)


def set_up(path: str, **settings) -> TableDataModule:
    data = TableDataModule(path, **settings)
    data.setup("fit")
    return data


def numbers(rows: int, seed: int = 0) -> np.ndarray:
    """Features of other sizes and signs, one of them constant, and a target."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.normal(-500, 20, rows), rng.normal(0, 1e-3, rows), np.full(rows, 0.1), rng.normal(7, 3, rows)], 1)


def lines(values: np.ndarray) -> list[str]:
    return [",".join(repr(float(value)) for value in row) for row in values]


@pytest.fixture
def folder():
    """Three clients of 12, 30 and 5 rows."""
    for name, rows in (("zoe", 12), ("ann", 30), ("bob", 5)):
        write(f"clients/{name}.csv", "a,b,c,target", *lines(numbers(rows, rows)))
    write("clients/notes.txt", "nothing to read")
    write("clients/.hidden.csv", "x")
    return "clients"


# ------------------------------------------------------------------ what is read


def test_a_file_for_each_client_by_name(folder, fl):
    """The same rows as in a folder, under other names; in YAML as well. A folder's files all belong to its client."""
    paths = {"ward 1": "clients/ann.csv", "ward 0": "clients/zoe.csv", "ward 2": "clients/bob.csv"}
    named = set_up(paths, test_share=0.0)
    whole = set_up(folder, test_share=0.0)
    assert named.train_set.domains_names == ("ward 0", "ward 1", "ward 2")
    for path, read in ((Path(folder), whole), ({name: Path(own) for name, own in paths.items()}, named)):
        assert torch.equal(set_up(path, test_share=0.0).train_set.tensors[0], read.train_set.tensors[0])
    rows = {name: named.train_set.tensors[0][named.train_set.domains == k] for k, name in enumerate(("zoe", "ann", "bob"))}
    for k, name in enumerate(("ann", "bob", "zoe")):
        assert torch.allclose(rows[name], whole.train_set.tensors[0][whole.train_set.domains == k], atol=1e-5)
    write("more/bob.csv", "a,b,c,target", *lines(numbers(5, 5)))
    write("more/eve.csv", "a,b,c,target", *lines(numbers(3, 3)))
    both = set_up({"one": "clients/ann.csv", "two": "more"}, test_share=0.0)
    assert torch.bincount(both.train_set.domains).tolist() == [30, 8]
    yaml = """
data:
  datamodule: {init_args: {path: {ward 1: clients/ann.csv, ward 0: clients/zoe.csv}, client_column: null}}
"""
    Path("wards.yaml").write_text(yaml)
    status, text = fl("partition", "--config", str(ROOT / "configs/data/table.yaml"), "--config", "wards.yaml")
    assert status == 0, text
    assert "ward 0" in text


NAMES = ["'010'", "'8'", "08", "'no'", "'12:30'", "1e3x", "'1e3'", "'null'", "'~'", "2024-01-01", "'.5'", "'0x10'", "'1_0'"]


def test_names_of_clients_are_texts_as_written(folder, fl):
    paths = ", ".join(f"{name}: clients/ann.csv" for name in NAMES)
    Path("names.yaml").write_text(f"data: {{datamodule: {{init_args: {{path: {{{paths}}}, client_column: null}}}}}}\n")
    status, text = fl("partition", "--config", str(ROOT / "configs/data/table.yaml"), "--config", "names.yaml")
    assert status == 0, text
    assert f"\n{len(NAMES)} clients, " in text
    assert {name.strip("'") for name in NAMES} <= {line.split(" ")[0] for line in text.splitlines()}


@pytest.mark.parametrize(
    ("setting", "build"),
    [
        ("data.datamodule.path", TableDataModule),
        ("data.datamodule.exports", lambda given: TableDataModule("x.csv", exports=given)),
        ("data.datamodule.root", lambda given: ImageFolderDataModule(given, test_share=0.2)),
        ("data.clients", lambda given: FederatedDataModule(clients=dict.fromkeys(given, BoringDataModule()))),
        ("federation.pool.max_examples", lambda given: FlowerPool(max_examples=given)),
    ],
)
def test_names_that_yaml_does_not_read_as_texts_are_refused(setting, build):
    """YAML reads 010, no, null, 12:30, .5 and 1e3 as these: a client would be lost, or have another name."""
    for name in (8, False, None, 750, 0.5, 1000.0):
        with pytest.raises(ConfigurationError) as caught:
            build({"a": 1, name: 2})
        assert f"'{setting}' has the name {name!r}, which is not text. Put quotes around it" in str(caught.value)


def test_wrong_files_for_clients(folder):
    with pytest.raises(ConfigurationError, match=r"'data.datamodule.path' must be a file, a folder, or a file for each client"):
        set_up({})
    with pytest.raises(DataError, match=r"client_column' names the clients of one file, but 'path' has a file for"):
        set_up({"a": "clients/ann.csv"}, client_column="a")
    with pytest.raises(DataError, match=r"'no.csv' is neither a file nor a folder"):
        set_up({"a": "no.csv"})
    with pytest.raises(DataError, match=r"'clients/ann.csv' is inside 'clients', so its rows would be trained on, too"):
        set_up({"a": "clients"}, test_path="clients/ann.csv")


def test_a_folder_has_a_client_for_each_file(folder):
    base = TableDataModule(folder, standardize=False, test_share=0.0)
    data = FederatedDataModule(base, DomainPartitioner())
    data.setup("fit")
    assert [data.client_name(k) for k in range(data.num_clients)] == ["ann", "bob", "zoe"]
    assert data.indices.sizes.tolist() == [30, 5, 12]
    inputs, targets = base.train_set.tensors
    assert inputs.dtype == targets.dtype == torch.float32
    for k, rows in enumerate((30, 5, 12)):
        np.testing.assert_allclose(inputs[data.indices[k]], numbers(rows, rows)[:, :3], rtol=1e-6)
        np.testing.assert_allclose(targets[data.indices[k]], numbers(rows, rows)[:, 3], rtol=1e-6)
    assert base.feature_names == base.train_set.feature_names == ("a", "b", "c")
    assert base.origin == "clients (47 rows, 3 features, 3 clients)"
    mixed = FederatedDataModule(base, IIDPartitioner(4))
    mixed.setup("fit")
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


def test_columns_go_by_their_names():
    write("c/one.csv", "a,b,target", "1,2,3", "4,5,6")
    write("c/two.csv", "target,b,a", "7,8,9")
    inputs, targets = set_up("c", standardize=False, test_share=0.0).train_set.tensors
    assert inputs.tolist() == [[1, 2], [4, 5], [9, 8]]
    assert targets.tolist() == [3, 6, 7]


def test_features_alone():
    write("x.csv", "a,b,target", "1,2,3", "4,5,6")
    data = set_up("x.csv", target=None, standardize=False, test_share=0.0, batch_size=1)
    (inputs,) = data.train_set.tensors
    assert inputs.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert sum(len(batch) for (batch,) in data.train_dataloader()) == 2
    assert not hasattr(data.train_set, "domains")
    with pytest.raises(DataError, match=r"name a column of clients in a table\), or set 'data.partitioner' to another"):
        FederatedDataModule(data, DomainPartitioner()).setup("fit")


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
    said = f"'kind' has the classes '{pair[0]}', '{pair[1]}', which differ only in capital letters or in how a number is"
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
@settings(max_examples=40, deadline=None)
def test_the_test_share_is_each_clients(sizes, share, seed):
    rows = [f"{k},{client}" for k, client in enumerate(np.repeat(range(len(sizes)), sizes))]
    random.Random(seed).shuffle(rows)
    path = write(Path("drawn") / "x.csv", "a,client", *rows)
    data = TableDataModule(path, None, test_share=share, client_column="client", standardize=False, seed=seed)
    if max(sizes) == 1:
        with pytest.raises(
            DataError, match=r"'data.datamodule.test_share' is .* selects no rows, .* more than one. Set it to 0"
        ):
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
    again = TableDataModule(path, None, test_share=share, client_column="client", standardize=False, seed=seed)
    again.setup("fit")
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


def test_without_a_test_set_lightning_sees_none(folder):
    data = FederatedDataModule(TableDataModule(folder, test_share=0.0), DomainPartitioner())
    data.setup("fit")
    assert not data.has_validation_set
    parts = FederatedDataModule(TableDataModule(folder, test_share=0.0), DomainPartitioner(), 0, 0.2, "clients")
    parts.setup("fit")
    assert sum(len(x) for x, _ in parts.val_dataloader()) == 6 + 1 + 2


def test_the_config_is_fitted_on_top_of_a_task(fl):
    write("data/table.csv", "a,client,b", *(f"{k % 7},{'xyz'[k % 3]},{-k}" for k in range(40)))
    configs = ["--config", str(ROOT / "configs/kmeans_simulated.yaml"), "--config", str(ROOT / "configs/data/table.yaml")]
    flags = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--trainer.max_epochs=2"]
    own = ["--data.datamodule.target=null", "--model.num_features=2"]
    status, text = fl("fit", *configs, *flags, *own)
    assert status == 0, text
    assert "Data: data/table.csv (31 + 9 rows, 2 features, 3 clients)" in text
    assert "val_distance" in text
    with open("runs/kmeans_simulated/partition.csv", newline="") as file:
        assert [row[0] for row in csv.reader(file)][1:4] == ["x", "y", "z"]
    status, text = fl("fit", *configs, *flags, *own[1:], "--trainer.default_root_dir=r")
    assert status == 1
    assert "error: 'data/table.csv' has no column 'target'. Its columns are a, client, b. Set 'data.datamodule.target'" in text


# ------------------------------------------------------------------ what a user is told


GOOD = "a,b,target\n1,2,3\n4,5,6\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"'x.csv' is empty. Add a header with column names and at least one row"),
        ("a,b,target\n", r"'x.csv' has a header but no rows"),
        ("1,2,3\n4,5,6\n", r"'x.csv' begins with numbers \(1, 2, 3\). Add a header"),
        ("a,a,target\n1,2,3\n", r"The header of 'x.csv' names the column 'a' twice"),
        ("a,,target\n1,2,3\n", r"The header of 'x.csv' has a column without a name. Give every column"),
        ("a,,,target\n1,2,3,4\n", r"The header of 'x.csv' has a column without a name"),
        (
            "a,b,c\n1,2,3\n",
            r"'x.csv' has no column 'target'. Its columns are a, b, c. Set 'data.datamodule.target' to one of them",
        ),
        ("target\n1\n2\n", r"'x.csv' has no columns besides target. Add columns of features"),
        ("a,b,target\n1,2,3\n4,5\n", r"x.csv, line 3 has 2 cells, but the header has 3. Fix that line"),
        (
            "a,b,target\n1,2,3\n\n4,five,6\n",
            r"x.csv, line 4: the column 'b' holds 'five', which is not a number. Write a number",
        ),
        ("a,b,target\n1,2,3\n4,5,?\n", r"x.csv, line 3: the column 'target' holds '\?', which is not a number"),
        ("a,b,target\n,2,3\n", r"x.csv, line 2: the column 'a' is empty. Write a number, remove the row, or remove the column"),
        ("a,b,target\n1,2,3\n4,nan,6\n", r"x.csv, line 3: the column 'b' holds 'nan', which is not a finite number"),
        ("a,b,target\n1,-inf,3\n", r"line 2: the column 'b' holds '-inf', which is not a finite number"),
        ("a,b,target\n1,1e39,3\n", r"line 2: the column 'b' holds '1e39', which is not a finite number"),
        ("a,b,target\n1,2,\xff\n", r"Cannot read 'x.csv' as a CSV file in UTF-8 \(.*\). Fix the file"),
    ],
)
def test_files_that_are_not_of_the_form(text, message):
    Path("x.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=message):
        set_up("x.csv")


def test_the_separator_that_is_set_is_the_wrong_one():
    write("x.csv", "a;b;target", "1;2;3", "4;5;6")
    with pytest.raises(DataError, match=r"The header of 'x.csv' is one column, 'a;b;target'. Set 'data.datamodule.csv: "):
        set_up("x.csv", csv={"separator": ","})
    assert len(set_up("x.csv", test_share=0.0).train_set) == 2


def test_clients_files_must_have_the_same_columns():
    for name in ("ann", "bob", "cy"):
        write(f"c/{name}.csv", "age,dose,target", "1,2,3")
    write("c/al.csv", "age,target", "1,2")
    write("c/zoe.csv", "age,dosis,target,weight", "1,2,3,4")
    with pytest.raises(DataError) as caught:
        set_up("c")
    assert str(caught.value) == (
        "The files have different features: 'c/al.csv' lacks dose; 'c/zoe.csv' lacks dose and also has dosis, weight; "
        "the others have age, dose. Give every file of 'data.datamodule.path' the same columns."
    )
    for k in range(7):
        write(f"c/more{k}.csv", "x,target", "1,2")
        write(f"c/usual{k}.csv", "age,dose,target", "1,2,3")
    with pytest.raises(DataError, match=r"'c/more3.csv' lacks age, dose and also has x, and 4 more files; the others have"):
        set_up("c")
    write("d/ann.csv", "age,dose,target", "1,2,3")
    write("test.csv", "age,dosis,target", "1,2,3")
    with pytest.raises(DataError) as caught:
        set_up("d", test_path="test.csv")
    assert str(caught.value) == (
        "The files have different features: 'test.csv' lacks dose and also has dosis; the training data have age, dose. "
        "Give every file of 'data.datamodule.test_path' the same columns."
    )


def test_many_columns_are_not_all_listed():
    write("x.csv", ",".join(f"c{k}" for k in range(30)), ",".join("1" * 30))
    with pytest.raises(DataError, match=r"Its columns are c0, .*, c19 and 10 more. Set 'data.datamodule.target'"):
        set_up("x.csv")


def test_places_that_hold_no_table():
    with pytest.raises(
        DataError, match=r"'nowhere' is neither a file nor a folder. Set 'data.datamodule.path' to a CSV file, or"
    ):
        set_up("nowhere")
    Path("empty").mkdir()
    with pytest.raises(DataError, match=r"The folder 'empty' has no CSV file \(\*.csv\) and no Parquet file. Set 'data"):
        set_up("empty")
    write("c/x.csv", GOOD)
    with pytest.raises(DataError, match=r"'nowhere' is neither a file nor a folder. Set 'data.datamodule.test_path'"):
        set_up("c", test_path="nowhere")
    for path in ("c", "c/x.csv"):
        with pytest.raises(DataError, match=r"'c/x.csv' is inside 'c.*', so its rows would be trained on, too"):
            set_up(path, test_path="c/x.csv")
    with pytest.raises(
        DataError, match=r"'data.datamodule.client_column' names the clients of one file, but 'path' is the folder 'c'"
    ):
        set_up("c", client_column="a")


def test_clients_and_classes_that_are_missing():
    write("x.csv", "a,site,target", "1,n,u", "2,,v")
    with pytest.raises(DataError, match=r"x.csv, line 3: the column 'site' is empty. Fill it, or remove the row"):
        set_up("x.csv", client_column="site", kind="classification")
    with pytest.raises(
        DataError, match=r"has no column 'place'. Its columns are a, site, target. Set 'data.datamodule.client_column"
    ):
        set_up("x.csv", client_column="place")
    write("y.csv", "a,target", "1,u", "2,")
    with pytest.raises(DataError, match=r"y.csv, line 3: the column 'target' is empty. Fill it"):
        set_up("y.csv", kind="classification")
    write("y.csv", "a,target", "1,u", "2,u")
    with pytest.raises(DataError, match=r"The column 'target' of 'y.csv' has the single class 'u', .* 'data.datamodule.tar"):
        set_up("y.csv", kind="classification")
    write("y.csv", "a,target", "1,u", "2,v")
    write("z.csv", "a,target", "1,u", "2,w")
    with pytest.raises(DataError, match=r"z.csv, line 3: the column 'target' has the class 'w', which does not occur in the"):
        set_up("y.csv", kind="classification", test_path="z.csv")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"test_share": 1.0}, "'data.datamodule.test_share' must be at least 0 and below 1"),
        ({"kind": "ranking"}, "'data.datamodule.kind' must be regression or classification, but is 'ranking'"),
        ({"kind": "classification", "target": None}, "'data.datamodule.kind' must be left out without a 'target'"),
        ({"client_column": "target"}, "'data.datamodule.client_column' must be a column other than 'target'"),
        ({"batch_size": 0}, "'data.datamodule.batch_size' must be 1 or above"),
        ({"eval_batch_size": 0}, "'data.datamodule.eval_batch_size' must be 1 or above"),
    ],
)
def test_settings_of_tables(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        TableDataModule("x.csv", **settings)


@given(st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_text_is_a_table_or_a_message(text):
    Path("any.csv").write_text(text, encoding="utf-8", errors="replace", newline="")
    data = TableDataModule("any.csv", target=None, test_share=0.0)
    with contextlib.suppress(DataError):  # anything else is a failure
        data.setup("fit")
        assert torch.isfinite(data.train_set.tensors[0]).all()


def test_the_training_file_within_the_test_folder():
    """Its rows would be tested on."""
    write("test/train.csv", GOOD)
    write("test/other.csv", GOOD)
    data = TableDataModule("test/train.csv", test_path="test")
    with pytest.raises(DataError, match=r"'test/train.csv' is inside 'test', so its rows would be tested on, too"):
        data.setup("fit")
