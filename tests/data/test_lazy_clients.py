"""Clients whose examples are read when they are drawn: the same bits as the same clients given at once, and few opened."""

from pathlib import Path
from typing import Any

import pytest
import torch
from federations import blobs, every_round, ready, same_bits
from lazy_stores import SIZES, Opened, Store, at_once, fit, lazily
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import ExamplePrivacy, FederatedDataModule

PRIVATE = {"privacy": ExamplePrivacy(max_grad_norm=1.0, noise_multiplier=0.5, noise_seed=7)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "listed", "local"),
    [
        ("trainer", True, {}),
        ("fabric", False, {"full_batch": True}),
        ("fabric", False, PRIVATE),
        ("stacked", False, {}),
        ("stacked", True, {}),
    ],
)
def test_the_same_bits_as_the_same_clients_given_at_once(engine: str, listed: bool, local: Any) -> None:
    lazy, given = (fit(data, engine=engine, local=local) for data in (lazily(Store(listed)), at_once(listed)))
    assert same_bits(lazy, given)


@pytest.mark.parametrize("engine", ["fabric", "trainer", "stacked"])
def test_clients_are_opened_for_their_turns_alone_and_then_released(tmp_path: Path, engine: str) -> None:
    """A run that is resumed opens no further ones."""
    store = Store()
    data = ready(lazily(store, val=DataLoader(TensorDataset(*blobs(8, 9)), 4)))
    assert store.opened == []
    assert data.num_clients == 4
    assert data.num_examples(1) == 12
    fit(data, 3, every_round(tmp_path), engine=engine)
    assert len(store.opened) == 3 * 2
    assert store.most <= 2
    assert len(store.alive) <= (engine == "trainer")  # whose last loader lives until Python collects cycles
    again = Store()
    fit(lazily(again, val=DataLoader(TensorDataset(*blobs(8, 9)), 4)), 4, engine=engine, ckpt_path=str(tmp_path / "last.ckpt"))
    assert len(again.opened) == 2


def test_a_million_clients_are_described_by_their_number() -> None:
    opened = []

    def open_client(client: int) -> TensorDataset:
        opened.append(client)
        return TensorDataset(*blobs(3, client))

    fit(FederatedDataModule(Opened(open_client, torch.tensor(3).expand(1_000_000), 32)))
    assert len(opened) == len(set(opened)) == 4


def test_the_union_of_all_clients_is_the_baseline_without_a_federation() -> None:
    data = ready(lazily(Store()))
    batches = list(data.train_dataloader())
    assert len(batches) == len(data.train_dataloader()) == sum(-(-n // 4) for n in SIZES)
    expected = torch.cat([blobs(n, client)[0] for client, n in enumerate(SIZES)])
    assert torch.equal(torch.cat([x for x, _ in batches]), expected)


def test_the_servers_set_is_validated() -> None:
    val = TensorDataset(*blobs(8, 9))
    data = ready(lazily(Store(), val=DataLoader(val, 4), test=DataLoader(val, 3)))
    assert [len(x) for x, _ in data.val_dataloader()] == [4, 4]
    assert [len(x) for x, _ in data.test_dataloader()] == [3, 3, 2]
