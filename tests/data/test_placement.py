"""Where the training set's tensors lie."""

import gc
import weakref

import pytest
import torch
from federations import Blobs, Consecutive, Plain, blobs, changed, federate, ready
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FederatedDataModule, LocalTraining
from fl_lightning.clients.stacked.stack import ClientStack
from fl_lightning.clients.trainer import _ResidentStrategy, is_on
from fl_lightning.data import TensorLoader, client_datasets
from fl_lightning.data.tensor_loader import beside
from fl_lightning.functional.blocks import blocks
from fl_lightning.functional.model_state import ModelState

META = torch.device("meta")  # stands in for a GPU: tensors arrive there, whatever this machine has


def test_tensors_are_placed_where_they_fit(monkeypatch):
    monkeypatch.setattr("fl_lightning.data.client_datasets.free_memory", lambda device: 2**30)
    dataset = TensorDataset(torch.ones(10, 3), torch.ones(10, dtype=torch.int64))
    assert [t.device.type for t in client_datasets.placed(dataset, META, 200 / 2**30).tensors] == ["meta", "meta"]
    assert client_datasets.placed(dataset, META, 199 / 2**30) is dataset
    other = [1, 2, 3]
    assert client_datasets.placed(other, META, 1.0) is other


def test_a_cpu_keeps_what_it_has():
    assert client_datasets.free_memory(torch.device("cpu")) == 0
    data = ready(FederatedDataModule(Blobs(), Consecutive()))
    data.place(torch.device("cpu"))
    assert data.client_datasets.training_loader(1, 0, False, False).tensors is data.client_datasets.source.dataset.tensors


@pytest.mark.parametrize(("settings", "there"), [({}, True), ({"drop_last": True}, True), ({"collate_fn": list}, False)])
def test_only_what_is_indexed_is_placed(monkeypatch, settings, there):
    monkeypatch.setattr("fl_lightning.data.client_datasets.free_memory", lambda device: 2**30)
    source = changed("train", DataLoader(TensorDataset(*blobs(40, 1)), 5, **settings))
    data = ready(FederatedDataModule(source, Consecutive()))
    data.place(META)
    loader = data.client_datasets.training_loader(1, 0, False, False)
    tensors = loader.tensors if there else loader.dataset.dataset.tensors
    assert tensors[0].device.type == ("meta" if there else "cpu")
    data.teardown("fit")
    assert data.client_datasets._placed == (None, None)


def test_another_training_set_takes_its_own_place(monkeypatch):
    """As where a cache of features replaces images after the first were placed."""
    monkeypatch.setattr("fl_lightning.data.client_datasets.free_memory", lambda device: 2**30)
    data = ready(FederatedDataModule(Blobs(), Consecutive()))
    data.place(META)
    data.datamodule.train = torch.zeros(40, 4), torch.zeros(40, dtype=torch.int64)
    data.reload()
    new = data.client_datasets.training_loader(1, 0, False, False).tensors[0]
    assert new.device.type == "meta"
    assert data.client_datasets.source.dataset.tensors[0].eq(0).all()


def test_hooks_that_move_batches_get_them_where_they_were(monkeypatch):
    seen = []
    monkeypatch.setattr(FederatedDataModule, "place", lambda self, device: seen.append(device))

    class Mover(Plain):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            return batch

    federate(Plain(), 1)
    federate(Mover(), 1)
    assert len(seen) == 1


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["trainer", "stacked"])
def test_the_training_set_leaves_the_device_with_the_fit(monkeypatch, engine):
    """Even if Trainer and orchestrator live on: a second fit would need the memory twice."""
    copies = []

    def copied(dataset, device, most):
        copy = TensorDataset(*(tensor.clone() for tensor in dataset.tensors))
        copies.append(weakref.ref(copy.tensors[0]))
        return copy

    monkeypatch.setattr("fl_lightning.data.client_datasets.placed", copied)
    run = federate(Plain(), 2, data=Blobs(), local=LocalTraining(engine=engine))
    gc.collect()  # as at the end of a fit on a GPU
    assert run.global_step == 2
    assert len(copies) == 1
    assert copies[0]() is None


def test_indices_follow_the_tensors():
    rows = torch.tensor([3, 1, 2])
    assert beside(rows, torch.device("cpu")) is rows
    assert beside(rows, META).device.type == "meta"
    (batch,) = next(iter(TensorLoader([torch.ones(5, 2, device=META)], 2, rows)))
    assert (batch.device.type, batch.shape) == ("meta", (2, 2))


def test_a_module_moves_if_only_a_metric_is_elsewhere():
    """Lightning moves logged metrics to the CPU after each fit, and the next client trains on the GPU."""
    module = Plain()
    strategy = _ResidentStrategy(device=META)
    strategy._lightning_module = strategy.model = module
    for part in (module.net, module.train_acc):  # val_acc stays behind
        part.to(META)
    strategy.model_to_device()
    assert module.val_acc.device.type == "meta"


def test_a_stack_without_buffers_stays_on_its_device():
    module = Plain().to(META)
    (first, _) = ClientStack(module, ModelState(module), [None, None], [{}, {}]).snapshots()
    assert first.vector.device.type == first.counters.device.type == "meta"
    assert first.counters.numel() == 0


@pytest.mark.parametrize(("batch", "there"), [([0, 0], True), ((0,), True), ({"x": 0}, False), ([0, "name"], False), (0, True)])
def test_a_batch_that_is_there_is_not_moved(batch, there):
    tensor = torch.zeros(2)
    real = (
        {"x": tensor} if isinstance(batch, dict) else tensor if batch == 0 else type(batch)(p if p else tensor for p in batch)
    )
    assert is_on(real, torch.device("cpu")) == there
    assert not is_on(real, META)


@pytest.mark.parametrize(("device", "lengths"), [("cpu", [2**16, 2**16, 1]), ("meta", [2**17 + 1])])
def test_a_gpu_gets_large_blocks(device, lengths):
    """Each block costs a launch for each operation there: 755 of them made a round of a large model six times as long."""
    vector = torch.zeros(2**17 + 1, device=device)
    assert [len(block) for block in blocks(vector)] == lengths
    assert [len(block) for block in blocks(torch.zeros(2**17 + 1), device=torch.device(device))] == lengths
