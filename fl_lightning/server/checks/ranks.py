"""Compare what every rank computes for itself: ranks that differ would train different models without an error."""

from __future__ import annotations

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError, DataError
from fl_lightning.functional.digest import digest
from fl_lightning.functional.model_state import ModelState
from fl_lightning.utilities.collectives import Collectives


def require_same_partition(trainer: Trainer, data: FederatedDataModule) -> None:
    """Refuse clients that have other examples on another rank.

    Raises:
        DataError: on every rank, naming the partitioner.
    """
    comm = Collectives(trainer)
    if comm.size == 1:
        return
    other = _first_other(comm.gather(data.indices.digest()))
    if other is not None:
        name = type(data.partitioner).__name__ if data.partitioner is not None else type(data).__name__
        raise DataError(
            f"{name} gives the clients other examples on rank {other} than on rank 0. Draw from a generator with a fixed seed, "
            "such as 'torch.Generator().manual_seed(self.seed)', and read the examples in the same order on every rank."
        )


def require_same_state(comm: Collectives, state: Tensor, source: str, round_idx: int) -> None:
    """Refuse a new state that differs between ranks.

    Args:
        comm: the ranks.
        state: the state on this rank, float64, shape (d,).
        source: the method that returned it, such as 'FedAvg.aggregate'.
        round_idx: the communication round, from 0.

    Raises:
        ConfigurationError: on every rank, naming the method.
    """
    bits = state.view(torch.int64).sum().view(1)  # modulo 2**64
    largest, smallest = comm.elementwise_maximum(torch.cat([bits, ~bits]))
    if largest != ~smallest:
        other = _first_other(comm.gather(int(bits)))
        raise ConfigurationError(
            f"{source} returned another state on rank {other} than on rank 0 in round {round_idx}. 'accumulate' runs only on "
            "the rank that trained the client, so attributes that it sets differ between ranks: pass on what it learns with "
            "'sums.add', which adds over all ranks. Draw random numbers from a generator with a fixed seed."
        )


def agree_on_buffers(comm: Collectives, server: ModelState, name: str) -> None:
    """Give every rank the first one's buffers if they differ, with a warning: each rank validates a part of the set.

    Args:
        comm: the ranks.
        server: the server's view of the module.
        name: the name of the module's class.
    """
    own, (_, *kinds) = server.tensors(), server.names()
    buffers = {path: own[path] for names in kinds for path in names}
    first, *others = comm.gather({path: digest(tensor) for path, tensor in buffers.items()}) if buffers else [{}]
    changed = [path for path in buffers if any(theirs[path] != first[path] for theirs in others)]
    if not changed:
        return
    for path, tensor in comm.gather({path: buffers[path].cpu() for path in changed})[0].items():
        buffers[path].copy_(tensor)
    rank_zero_warn(
        f"Validation changed the buffer {', '.join(map(repr, changed))} of {name}. Each rank validates a part of the set, "
        "so the ranks had different values, of which the first rank's count: the result is not that of a run on one rank. "
        "Change buffers in training only ('if self.training')."
    )


def _first_other(values: list[object]) -> int | None:
    """Return the first rank whose value is not that of rank 0; None if all are equal."""
    return next((rank for rank, value in enumerate(values) if value != values[0]), None)
