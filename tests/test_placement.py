"""Where the training set's tensors lie."""

from __future__ import annotations

import pytest
import torch
from federations import Blobs, Consecutive, Plain, federate, same_bits, trainer, weights
from torch.utils.data import TensorDataset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator
from fl_lightning.data import placement

META = torch.device("meta")  # stands in for a GPU: tensors arrive there, whatever this machine has


def test_tensors_are_placed_where_they_fit():
    dataset = TensorDataset(torch.ones(10, 3), torch.ones(10, dtype=torch.int64))
    assert [t.device.type for t in placement.placed(dataset, META, 200).tensors] == ["meta", "meta"]
    assert placement.placed(dataset, META, 199) is dataset
    other = [1, 2, 3]
    assert placement.placed(other, META, 1e9) is other


def test_a_cpu_keeps_what_it_has():
    assert placement.free_memory(torch.device("cpu")) == 0
    data = FederatedDataModule(Blobs(), Consecutive())
    trainer(1, FederatedOrchestrator()).fit(Plain(), data)
    assert data.holdings._placed is data.holdings.source.dataset


def test_clients_read_what_was_placed(monkeypatch):
    finals = []
    for copies in (False, True):
        if copies:
            monkeypatch.setattr("fl_lightning.data.federated.free_memory", lambda device: 2**30)
        torch.manual_seed(0)
        module, data = Plain(), FederatedDataModule(Blobs(), Consecutive())
        trainer(2, FederatedOrchestrator()).fit(module, data)
        loader = data.holdings.training_loader(1, 0, False, False)
        assert (loader.tensors is data.holdings._placed.tensors) is True
        assert (data.holdings._placed is data.holdings.source.dataset) is not copies
        finals.append(weights(module))
    assert same_bits(*finals)


def test_a_share_outside_its_range_is_refused():
    with pytest.raises(ConfigurationError, match=r"'data\.device_memory' must be from 0 to 1"):
        federate(Plain(), 1, data=FederatedDataModule(Blobs(), Consecutive(), device_memory=2))
