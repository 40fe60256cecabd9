"""Clients whose examples are read when they are drawn: the same bits as the same clients given at once, and few opened."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from federations import Plain, blobs, every_round, same_bits, weights
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning import (
    ConfigurationError,
    DataError,
    ExamplePrivacy,
    FederatedDataModule,
    FederatedOrchestrator,
    IIDPartitioner,
    LabelAveraging,
    LazyClients,
    LocalTraining,
)

SIZES = [7, 12, 5, 9]


class Listed(Dataset[Any]):
    """Examples that are read one by one."""

    def __init__(self, examples: TensorDataset) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Any:
        return self.examples[index]


class Store:
    """Open clients, and count how often, and how many are open at once."""

    def __init__(self, listed: bool = False) -> None:
        self.listed = listed
        self.opened: list[int] = []
        self.alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self.most = 0

    def __call__(self, client: int) -> Any:
        examples: Any = TensorDataset(*blobs(SIZES[client], client))
        found = Listed(examples) if self.listed else examples
        self.opened.append(client)
        self.alive.add(found)
        self.most = max(self.most, len(self.alive))
        return found


def fit(data: FederatedDataModule, rounds: int = 2, folder: Path | None = None, engine: str = "fabric", **settings: Any) -> Any:
    local = LocalTraining(engine=engine, **settings.pop("local", {}))
    callbacks: list[L.Callback] = [FederatedOrchestrator(local=local, clients_per_round=2, **settings.pop("federation", {}))]
    if folder is not None:
        callbacks.append(every_round(folder))
    quiet = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu", "enable_checkpointing": folder is not None}
    torch.manual_seed(0)
    module = Plain()
    L.Trainer(max_epochs=rounds, callbacks=callbacks, **quiet).fit(module, data, **settings)
    return weights(module)


def lazily(store: Any, sizes: Any = SIZES, **settings: Any) -> FederatedDataModule:
    return FederatedDataModule.from_clients(store, num_clients=4, num_examples=sizes, batch_size=4, **settings)


def at_once(listed: bool = False) -> FederatedDataModule:
    return FederatedDataModule.from_clients({str(k): Store(listed)(k) for k in range(4)}, batch_size=4)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("engine", ["trainer", "fabric", "stacked"])
def test_the_same_bits_as_the_same_clients_given_at_once(engine: str, listed: bool) -> None:
    assert same_bits(fit(lazily(Store(listed)), engine=engine), fit(at_once(listed), engine=engine))


def test_full_batches_and_private_steps_are_the_same_too() -> None:
    private = ExamplePrivacy(max_grad_norm=1.0, noise_multiplier=0.5, noise_seed=7)
    for local in ({"full_batch": True}, {"privacy": private}):
        assert same_bits(fit(lazily(Store()), local=local), fit(at_once(), local=local))


def test_clients_are_opened_for_their_turns_alone_and_then_released() -> None:
    store = Store()
    data = lazily(store, val=TensorDataset(*blobs(8, 9)))
    data.setup("fit")
    assert store.opened == []
    assert data.num_clients == 4
    assert data.num_examples(1) == 12
    fit(data, rounds=3)
    assert len(store.opened) == 3 * 2
    assert store.most <= 2
    assert len(store.alive) == 0


def test_a_resumed_run_reads_no_further_clients_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = fit(lazily(Store()), rounds=3)
    fit(lazily(Store()), rounds=2, folder=tmp_path)
    store = Store()
    assert same_bits(fit(lazily(store), rounds=3, ckpt_path=str(tmp_path / "last.ckpt")), whole)
    assert len(store.opened) == 2


def test_a_million_clients_are_described_by_their_number() -> None:
    opened = []

    def open_client(client: int) -> TensorDataset:
        opened.append(client)
        return TensorDataset(*blobs(3, client))

    data = FederatedDataModule.from_clients(open_client, num_clients=1_000_000, num_examples=3)
    fit(data)
    assert len(opened) == 4
    assert len(set(opened)) == 4


def test_the_union_of_all_clients_is_the_baseline_without_a_federation() -> None:
    data = lazily(Store())
    data.setup("fit")
    batches = list(data.train_dataloader())
    assert len(batches) == len(data.train_dataloader()) == sum(-(-n // 4) for n in SIZES)
    expected = torch.cat([blobs(n, client)[0] for client, n in enumerate(SIZES)])
    assert torch.equal(torch.cat([x for x, _ in batches]), expected)


class Mapped(LazyClients):
    """Read a client's rows of arrays that are mapped into memory."""

    def __init__(self, folder: str, batch_size: int = 4) -> None:
        super().__init__(batch_size)
        self.folder = Path(folder)

    def setup(self, stage: str) -> None:
        self.ends = np.load(self.folder / "ends.npy")
        self.x, self.y = (np.load(self.folder / f"{name}.npy", mmap_mode="r") for name in ("x", "y"))

    def num_examples(self) -> Any:
        return np.diff(self.ends, prepend=0)

    def open(self, client: int) -> TensorDataset:
        begin = self.ends[client - 1] if client else 0
        rows = slice(begin, self.ends[client])
        return TensorDataset(torch.tensor(self.x[rows]), torch.tensor(self.y[rows]))


class Nobody(LazyClients):
    def num_examples(self) -> list[int]:
        return []


def save(folder: Path) -> None:
    each = [blobs(n, client) for client, n in enumerate(SIZES)]
    np.save(folder / "ends.npy", np.cumsum(SIZES))
    for name, parts in zip("xy", zip(*each, strict=True), strict=True):
        np.save(folder / f"{name}.npy", torch.cat(parts).numpy())


def test_a_datamodule_opens_clients_too(tmp_path: Path) -> None:
    save(tmp_path)
    assert same_bits(fit(FederatedDataModule(Mapped(str(tmp_path)))), fit(at_once()))


def test_it_is_named_in_a_configuration(tmp_path: Path, fl: Any) -> None:
    save(tmp_path)
    text = f"""
model: {{class_path: federations.Plain}}
data: {{datamodule: {{class_path: test_lazy_clients.Mapped, init_args: {{folder: {tmp_path}}}}}}}
federation: {{clients_per_round: 2}}
trainer: {{max_epochs: 1, accelerator: cpu, logger: false, enable_progress_bar: false, default_root_dir: {tmp_path}}}
"""
    (tmp_path / "run.yaml").write_text(text)
    status, printed = fl("fit", "--config", str(tmp_path / "run.yaml"))
    assert status == 0, printed


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FederatedDataModule.from_clients(Store(), num_examples=3), "'num_clients' is missing"),
        (lambda: FederatedDataModule.from_clients(Store(), num_clients=4), "'num_examples' is missing.*from_clients"),
        (lambda: lazily(Store(), [1, 2]).setup("fit"), "'num_examples' must be one number for each of 4 clients, but is 2"),
        (lambda: lazily(Store(), [1, 2, 0, 4]).setup("fit"), "'num_examples' has 0 for client 2. Give each client"),
        (
            lambda: FederatedDataModule.from_clients(Store(), num_clients=0, num_examples=1),
            "'num_clients' must be a whole number",
        ),
        (lambda: FederatedDataModule.from_clients(Store(), num_clients=2, num_examples=0).setup("fit"), "has 0 for client 0"),
        (lambda: FederatedDataModule.from_clients(Store(), num_clients=2, num_examples=0.5).setup("fit"), "but is .0.5"),
        (lambda: FederatedDataModule(Nobody()).setup("fit"), "'num_examples' has no numbers"),
        (
            lambda: lazily(Store(), [1, 2, 0.5, 4]).setup("fit"),
            r"whole number for each client, but is \[1, 2, 0.5, 4\]. Give a",
        ),
        (lambda: lazily(Store(), "abcd").setup("fit"), "whole number for each client, but is abcd. Give a list"),
        (lambda: FederatedDataModule(LazyClients()).setup("fit"), "whole number for each client, but is None"),
        (
            lambda: FederatedDataModule.from_clients({"a": 1}, num_clients=1),
            "'num_clients' must be left out if clients are given",
        ),
        (lambda: lazily(Store(), num_workers=2), "'num_workers' must be 0 if clients are opened by a function, but is 2"),
        (lambda: lazily(Store(), val={"0": 1}), "'val' must be the server's dataset or DataLoader.* but is 'dict'"),
        (lambda: lazily(Store(), client_test=0.2).setup("fit"), "'data.client_test' must be off if clients read when they"),
        (lambda: lazily(Store(), public_share=0.2), "'data.public_share' must be 0"),
        (lambda: lazily(Store(), rebalancing=LabelAveraging()).setup("fit"), "'data.rebalancing' must be off"),
        (lambda: FederatedDataModule(Mapped("."), IIDPartitioner(2)), "'data.partitioner' must be null with LazyClients"),
        (lambda: Mapped(".", batch_size=0), "'data.datamodule.batch_size' must be 1 or above, but is 0"),
    ],
)
def test_wrong_settings(make: Any, message: str) -> None:
    with pytest.raises((ConfigurationError, DataError), match=message):
        make()


def test_what_a_client_opens_must_be_what_was_announced() -> None:
    with pytest.raises(DataError, match=r"Client . has \d+ examples, but its 'num_examples' is 6. Make both agree"):
        fit(lazily(Store(), 6))
    for given in (3, DataLoader(TensorDataset(*blobs(3, 0)))):
        with pytest.raises(
            DataError, match=f"was opened as a {type(given).__name__}, but must be a dataset .* Return the dataset"
        ):
            fit(lazily(lambda client, given=given: given))


def test_settings_that_need_labels_or_other_parts_are_refused() -> None:
    data = lazily(Store())
    data.setup("fit")
    for ask in (data.label_counts, lambda: data.client_evaluation_view(0, "test")):
        with pytest.raises(DataError, match=r"are read when the clients are drawn, so .* give the clients' datasets"):
            ask()
    from fl_lightning import FedLoss  # asks each client for its own validation loss

    with pytest.raises((ConfigurationError, DataError), match="validation"):
        fit(data, federation={"strategy": FedLoss()})


def test_the_servers_set_is_validated() -> None:
    val = TensorDataset(*blobs(8, 9))
    data = lazily(Store(), val=val, test=DataLoader(val, 3))
    data.setup("fit")
    assert [len(x) for x, _ in data.val_dataloader()] == [4, 4]
    assert [len(x) for x, _ in data.test_dataloader()] == [3, 3, 2]
