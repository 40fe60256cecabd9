"""Four clients whose examples are read when they are drawn, and a federation of them."""

import weakref
from typing import Any

import torch
from client_sites import Read
from federations import Plain, blobs, trainer, weights
from torch.utils.data import TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator, LazyClients, LocalTraining

SIZES = [7, 12, 5, 9]


class Store:
    """Open clients, and count how often, and how many are open at once."""

    def __init__(self, listed: bool = False) -> None:
        self.listed = listed
        self.opened: list[int] = []
        self.alive: weakref.WeakSet[Any] = weakref.WeakSet()
        self.most = 0

    def __call__(self, client: int) -> Any:
        examples = TensorDataset(*blobs(SIZES[client], client))
        found = Read(examples) if self.listed else examples
        self.opened.append(client)
        self.alive.add(found)
        self.most = max(self.most, len(self.alive))
        return found


class Opened(LazyClients):
    """Clients that a function opens."""

    def __init__(self, opens: Any, sizes: Any, batch_size: int = 4, val: Any = None) -> None:
        super().__init__(batch_size)
        self._opens, self._sizes = opens, sizes
        if val is not None:
            vars(self)["val_dataloader"] = lambda: val

    def num_examples(self) -> Any:
        return self._sizes

    def open(self, client: int) -> Any:
        return self._opens(client)


def lazily(store: Any, sizes: Any = SIZES, val: Any = None, **settings: Any) -> FederatedDataModule:
    return FederatedDataModule(Opened(store, sizes, val=val), **settings)


def at_once(listed: bool = False) -> FederatedDataModule:
    return FederatedDataModule.from_clients({str(k): Store(listed)(k) for k in range(4)}, batch_size=4)


def fit(data: Any, rounds: int = 2, *callbacks: Any, engine: str = "fabric", ckpt_path: Any = None, **local: Any) -> Any:
    """Return the weights after a federation of two clients a round."""
    federation = FederatedOrchestrator(local=LocalTraining(engine=engine, **local), clients_per_round=2)
    torch.manual_seed(0)
    module = Plain()
    trainer(rounds, federation, *callbacks, enable_checkpointing=bool(callbacks)).fit(module, data, ckpt_path=ckpt_path)
    return weights(module)
