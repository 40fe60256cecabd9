"""The same small federation trained by two engines, and where they differ."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from federations import Blobs, Consecutive, Plain, blobs, federate, weights
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fl_lightning import ClientUpdate, FederationCallback, LocalTraining

Figures = dict[str, float | str | None]
ENGINES = ["trainer", "fabric"]
ONE_ENOUGH = [pytest.param("trainer", marks=pytest.mark.slow), "fabric"]
"""Where both engines share the code that is tested."""


class Collect(FederationCallback):
    """Keeps what clients send."""

    def __init__(self) -> None:
        self.updates: list[ClientUpdate] = []

    def on_client_end(self, trainer: Any, pl_module: Any, update: ClientUpdate) -> None:
        self.updates.append(update)


def trained(
    engine: Any,
    make: Callable[[], L.LightningModule],
    data: Callable[[], Any] = Blobs,
    flags: Any = None,
    server: Any = None,
    sizes: Any = None,
    **local: Any,
) -> tuple[dict[str, Tensor], Figures]:
    """Weights and figures after three rounds; callbacks and the server's parts come as factories: runs share none."""
    L.seed_everything(4, verbose=False)
    module, collect = make(), Collect()
    local["callbacks"] = [kind() for kind in local.pop("callbacks", ())] or None
    settings = LocalTraining(engine=engine, **{"max_epochs": 2, **local})
    parts = {name: kind() if callable(kind) else kind for name, kind in (server or {}).items()}
    divided = Consecutive(sizes) if sizes else None
    flags = {"num_sanity_val_steps": 0, "limit_val_batches": 1, **(flags or {})}
    run = federate(module, 3, collect, data=data(), partitioner=divided, flags=flags, local=settings, **parts)
    found: Figures = {name: float(value) for name, value in run.callback_metrics.items() if "sec" not in name}
    seen: dict[Any, int] = {}
    for u in collect.updates:
        period = seen[u.round_idx, u.client] = seen.get((u.round_idx, u.client), 0) + 1
        of = f"round {u.round_idx}, client {u.client}, period {period}: "
        found |= {of + name: getattr(u, name) for name in ("num_steps", "train_loss", "normalizer", "optimizer")}
        found |= {of + name: value for name, value in u.metrics.items()}
    assert len(collect.updates) >= 3
    return weights(module), found


def differences(engine: Any, make: Callable[[], L.LightningModule], tolerance: float = 0.0, **settings: Any) -> list[str]:
    """What an engine does otherwise than ``trainer``, in words; tolerance 0 asks for the same bits."""
    only_stacked = {name: settings.pop(name) for name in ("stack_size", "compile") if name in settings}
    expected, figures = trained("trainer", make, **settings)
    found, own = trained(engine, make, **settings, **only_stacked)
    far = []
    for name in expected.keys() | found.keys():
        one, other = expected.get(name), found.get(name)
        if one is None or other is None or one.dtype != other.dtype or not torch.allclose(one, other, 0, tolerance):
            far.append(f"weights {name}")
    for name in figures.keys() | own.keys():
        one, other = figures.get(name, "missing"), own.get(name, "missing")
        close = isinstance(one, float) and isinstance(other, float) and abs(one - other) <= tolerance * max(1, abs(one))
        if one != other and not close:
            far.append(f"{name}: {one} became {other}")
    return sorted(far)


def fitted(make: Callable[[], L.LightningModule], rounds: int = 2, **settings: Any) -> Any:
    """The module of a federation that begins with the same weights each time."""
    torch.manual_seed(3)
    module = make()
    federate(module, rounds, **settings)
    return module


def tier_1(names: Iterable[str], *quick: str) -> list[Any]:
    """Return the names as parameters, of which all but some are left to the slow tier."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def variant(base: type[L.LightningModule] = Plain, **methods: Any) -> Any:
    """A module with other methods."""
    return type("Variant", (base,), methods)


def built(change: Any, base: type[L.LightningModule] = Plain, **methods: Any) -> Any:
    """A module that is changed at the end of its ``__init__``, with other methods."""

    def build(self: Any) -> None:
        base.__init__(self)
        change(self)

    return variant(base, __init__=build, **methods)


def stepping(body: Any) -> Any:
    """A module whose training step is ``body(module, inputs, labels, batch_idx)``."""
    return variant(training_step=lambda self, batch, batch_idx: body(self, *batch, batch_idx))


class Manual(Plain):
    """Only a Trainer follows manual optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.optimizers().zero_grad()
        self.manual_backward(loss)
        self.optimizers().step()
        return loss


def optimized(make: Callable[[Any], Any]) -> Any:
    """A module with another optimizer, given its parameters."""
    return variant(configure_optimizers=lambda self: make(self.parameters()))


def scheduled(make: Callable[[Any], Any], **config: Any) -> Any:
    """A module with a schedule, given its optimizer."""

    def configure_optimizers(self: Any) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), **config}}

    return variant(configure_optimizers=configure_optimizers)


class Jittered(Dataset[Any]):
    """Examples as dictionaries, changed at random each time with the numbers of torch, numpy and Python."""

    def __init__(self) -> None:
        self.x, self.y = blobs(40, 1)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> dict[str, Any]:
        noise = torch.randn(4) + np.random.randn() + random.random()
        return {"x": (self.x[index] + 0.1 * noise).float(), "y": self.y[index], "name": f"example {index % 2}"}


class JitteredBlobs(Blobs):
    def train_dataloader(self) -> Any:
        return DataLoader(Jittered(), batch_size=5, shuffle=True)


class Transferred(Blobs):
    """Changes batches on their way, and asks its Trainer how far it is."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [batch[0] * 2, batch[1]]

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if not self.trainer.training:
            return batch
        return [batch[0] + 0.1 * (1 + self.trainer.current_epoch) * torch.randn_like(batch[0]), batch[1]]
