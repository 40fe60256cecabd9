"""What each client holds, before training: table, files, picture, W&B."""

import csv
import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from command_line import ADAFED, SMALL, fit
from federations import Blobs, Consecutive, Plain, trainer
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset
from wandb_file import history

from fl_lightning import FederatedDataModule, FederatedOrchestrator, FederationReport, IIDPartitioner
from fl_lightning.reporting.partition import PartitionSummary, draw_partition
from fl_lightning.reporting.tables import text_table

COUNTS = torch.tensor([[3, 1], [1, 3], [0, 4]])


def summary(public: torch.Tensor, counts: torch.Tensor | None = COUNTS) -> PartitionSummary:
    parts = {"training": torch.tensor([4, 4, 4]), "test": torch.tensor([1, 2, 3])}
    return PartitionSummary(["ann", "bob", "eve"], parts, counts, ["cat", "dog"], public)


def test_the_table_by_hand():
    """The whole is 1/3 and 2/3; EMD by hand: |3/4 - 1/3| + |1/4 - 2/3| = 10/12, 2/12, 8/12."""
    lines = summary(torch.tensor([2, 2])).text(2).splitlines()
    assert lines[0].split() == ["client", "training", "test", "classes", "EMD", "cat", "dog"]
    assert lines[1].split() == ["ann", "4", "1", "2", "0.8333", "3", "1"]
    assert lines[3] == "... and 1 more clients"
    assert lines[4] == "3 clients, 12 training examples: 4 to 4 per client, median 4."
    assert "mean 0.556, from 0.167 to 0.833" in lines[5]
    # with two of each: (5, 3), (3, 5), (2, 6) of 8, the whole 10 and 14 of 24: 10/24, 2/24, 8/24
    assert lines[6] == "Every client also trains on 4 public examples; with them the mean distance is 0.278."
    lines = summary(torch.tensor([0]), None).text(9).splitlines()  # without labels
    assert (lines[0].split(), len(lines)) == (["client", "training", "test"], 5)
    assert text_table(["a", "bb"], [["xyz", 1], ["y", 0.25]]) == "a        bb\nxyz       1\ny    0.2500"


def test_a_stream_has_an_unknown_size(tmp_path):
    parts = {"training": torch.tensor([1, 7, 1]), "validation": torch.tensor([2, 0, 3])}
    some = PartitionSummary(["ann", "bob", "eve"], parts, None, [], torch.tensor([0]), torch.tensor([True, False, True]))
    lines = some.text(9).splitlines()
    assert [line.split() for line in lines[1:4]] == [["ann", "unknown", "2"], ["bob", "7", "0"], ["eve", "unknown", "3"]]
    assert lines[4] == "3 clients, 2 with a stream of unknown length, 7 training examples: 7 to 7 per client, median 7."
    some.write(tmp_path / "partition.csv")
    assert (tmp_path / "partition.csv").read_text().split() == ["client,training,validation", "ann,,2", "bob,7,0", "eve,,3"]
    all_of_them = dataclasses.replace(some, streams=torch.tensor([True] * 3))
    assert all_of_them.text(9).splitlines()[4] == "3 clients, 3 with a stream of unknown length."
    assert draw_partition(some, tmp_path / "partition.png")
    assert draw_partition(all_of_them, tmp_path / "partition.png")


def test_a_fit_shows_the_partition(capsys):
    data = FederatedDataModule(Blobs(n=40), Consecutive((7, 20, 13)), client_test=0.2)
    trainer(1, FederatedOrchestrator(), FederationReport(max_clients=2)).fit(Plain(), data)
    assert "... and 1 more clients" in capsys.readouterr().out
    rows = list(csv.reader(Path("partition.csv").read_text().splitlines()))
    assert rows[0] == ["client", "training", "test", "classes", "EMD", "0", "1", "2"]
    labels = data.datamodule.train[1]
    for client in range(3):
        counts = torch.bincount(labels[data.indices[client]], minlength=3).tolist()
        sizes = [len(data.indices[client]), len(data.splits.test[client]), sum(count > 0 for count in counts)]
        assert [int(x) for x in (*rows[client + 1][1:4], *rows[client + 1][5:])] == [*sizes, *counts]
    with Image.open("partition.png") as picture:
        assert picture.format == "PNG"
        assert len(set(picture.convert("L").resize((60, 40)).tobytes())) > 10


def shown(capsys, labels) -> str:
    """Return what is said of three clients with other labels, a function of the inputs."""
    base = Blobs(n=40)
    base.train_dataloader = lambda: DataLoader(TensorDataset(base.train[0], labels(base.train[0])), batch_size=5)
    data = FederatedDataModule(base, IIDPartitioner(3))
    data.setup("fit")
    FederationReport().show_partition(data, Path())
    return capsys.readouterr().out


@pytest.mark.parametrize("labels", [lambda x: x.sum(1), lambda x: torch.arange(40) * 1000])
def test_numbers_that_are_no_classes(labels, capsys):
    assert shown(capsys, labels).splitlines()[0].split() == ["client", "training"]
    assert Path("partition.png").exists()


def test_many_clients_and_classes_and_no_picture_without_matplotlib(monkeypatch, capsys):
    counts = torch.randint(0, 9, (300, 100), generator=torch.Generator().manual_seed(0))
    names, classes = ([str(k) for k in range(size)] for size in counts.shape)
    many = PartitionSummary(names, {"training": counts.sum(dim=1)}, counts, classes, torch.zeros(100))
    assert draw_partition(many, Path("many.png"))
    with Image.open("many.png") as picture:
        assert picture.height < 2000
    assert len(many.text(5).splitlines()[1].split()) == 4  # a hundred columns are for the file
    assert len(many.columns) == 104
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "a picture needs matplotlib: pip install 'fl_lightning[plots]'" in shown(capsys, lambda x: torch.arange(40) % 3)
    assert not Path("partition.png").exists()


def test_it_can_be_switched_off(capsys):
    data = FederatedDataModule(Blobs(), Consecutive())
    trainer(1, FederatedOrchestrator(), FederationReport(partition=False, clients=False)).fit(Plain(), data)
    trainer(1, FederationReport()).fit(Plain(), Blobs())  # nothing to show
    trainer(1, FederatedOrchestrator(), FederationReport(), fast_dev_run=True).fit(Plain(), data)
    assert "per client, median" not in capsys.readouterr().out
    assert not [*Path().glob("*.csv"), *Path().glob("partition*")]


@pytest.mark.slow
def test_the_command_shows_it_without_training_and_leaves_a_finished_run_as_it_is(copied_run, fl):
    status, text = fl("partition", "--config", ADAFED, *SMALL, "--trainer.default_root_dir=new")
    assert status == 0, text
    assert "Partition: new (partition.csv, partition.png)" in text
    assert sorted(path.name for path in Path("new").iterdir()) == ["partition.csv", "partition.png"]
    before = (copied_run / "partition.csv").read_text()
    status, text = fl("partition", "--config", ADAFED, *SMALL, "--data.partitioner=IIDPartitioner")
    assert status == 0, text
    assert "10 clients, 4000 training examples" in text
    assert "'runs/adafed_mnist' contains a run, so its files are left unchanged." in text
    assert (copied_run / "partition.csv").read_text() == before


@pytest.mark.slow
def test_wandb_gets_tables_and_picture_also_of_evaluations_at_the_clients(fl):
    evaluation = ["--data.client_test=0.2", "--data.server_set=clients", "--federation.client_evaluation.every_n_rounds=1"]
    personal = "--federation.client_evaluation.personal_epochs=1"
    status, text = fit(fl, "--federation_report.partition=true", *evaluation, personal, rounds=2)
    assert status == 0, text
    (path,) = Path("runs/adafed_mnist/wandb").glob("offline-run-*/run-*.wandb")
    rows = history(path)
    names = {name for row in rows for name in row if name.startswith(("partition", "client_evaluation", "client_comp"))}
    assert {"partition", "partition_picture", "client_evaluation", "client_comparison"} <= names
    assert sum("federation/client_mean" in row for row in rows) == 2
    assert list(path.parent.rglob("*.png"))
    assert "client  test examples  global  personalised" in text
    assert "Validated on the clients' own test parts together." in text
    assert "test images" not in text
