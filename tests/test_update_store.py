"""A round's models on disk: the same result as in memory, for models that arrive one by one."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from federations import Plain, federate, same_bits, weights

from fl_lightning import ClientError, ClientUpdate, ConfigurationError, FederatedOrchestrator, FedMedian, ShapleyValues
from fl_lightning.callbacks.update_store import UpdateStore
from fl_lightning.strategies import fedmedian


def update(client: int, state: torch.Tensor) -> ClientUpdate:
    return ClientUpdate(client, 0, 5, 1, state=state, counters=torch.tensor([client]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_kept_comes_back(tmp_path, dtype):
    states = [torch.randn(11).to(dtype) for _ in range(3)]
    store = UpdateStore(tmp_path / "updates", 0)
    for client, state in enumerate(states):
        store.keep(update(client, state))
    assert all(kept.update.state is None for kept in store.kept)
    back = [kept.load() for kept in store.kept]
    store.close()
    assert not list((tmp_path / "updates").iterdir())
    for client, (state, own) in enumerate(zip(states, back, strict=True)):
        assert torch.equal(own.state.double(), state.double())
        assert own.counters.tolist() == [client]


def test_a_file_that_another_rank_does_not_see_is_named(tmp_path):
    store = UpdateStore(tmp_path / "updates", 0)
    store.keep(update(0, torch.ones(3)))
    shutil.rmtree(tmp_path / "updates")
    with pytest.raises(ClientError, match=r"'trainer.default_root_dir' be on a file system that all ranks share"):
        store.kept[0].load()


@pytest.mark.parametrize("models", [1, 4, 5])
def test_the_median_in_pieces_is_numpys(monkeypatch, models):
    monkeypatch.setattr(fedmedian, "_PIECE", 7)  # one or two numbers of each model at a time
    states = torch.randn(models, 23, generator=torch.Generator().manual_seed(models))
    median, shares = FedMedian().combine([update(k, state) for k, state in enumerate(states)], lambda models: [])
    assert np.allclose(median.numpy(), np.median(states.double().numpy(), axis=0), rtol=0, atol=1e-15)
    assert shares == [1.0] * models


@pytest.mark.parametrize("strategy", [FedMedian, lambda: ShapleyValues("val_acc")])
def test_a_federation_on_disk_is_the_one_in_memory(tmp_path, strategy):
    finals = []
    for limit in (4.0, 0.0):
        torch.manual_seed(3)
        module = Plain()
        federate(module, 3, strategy=strategy(), updates_in_memory=limit, flags={"default_root_dir": tmp_path})
        finals.append(weights(module))
        assert (tmp_path / "updates").exists() == (limit == 0)
    assert same_bits(*finals)


def test_a_negative_limit_is_refused():
    with pytest.raises(ConfigurationError, match=r"'federation.updates_in_memory' must be 0 or above, in GiB"):
        FederatedOrchestrator(updates_in_memory=-1)
