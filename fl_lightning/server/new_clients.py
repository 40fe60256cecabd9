"""Give clients that have not trained yet the mean of the others' personal parts."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.clients.memory import ClientMemory
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.model_state import ModelState


def set_mean_part(server: ModelState, memory: ClientMemory, sizes: Tensor) -> None:
    """Set the server's personal tensors, with which new clients begin, to the mean over the clients that have trained.

    The mean is weighted by examples; of counters it is the maximum. Every rank holds the same state, and adds in client order.

    Args:
        server: the view of the server's module.
        memory: the state of all clients.
        sizes: the number of training examples of each client, shape (K,).
    """
    own, total = server.own_tensors(), 0.0
    sums = {name: torch.zeros_like(to_float64(tensor)) for name, tensor in own.items()}
    for client, size in enumerate(sizes.tolist()):
        part = memory.personal(client)
        total += size if part else 0.0
        for name, tensor in part.items():
            mine = to_float64(tensor.to(own[name].device))
            if tensor.is_floating_point():
                sums[name].add_(mine, alpha=size)
            else:
                torch.maximum(sums[name], mine, out=sums[name])
    if total:
        server.set_own({name: t / total if own[name].is_floating_point() else t for name, t in sums.items()})
