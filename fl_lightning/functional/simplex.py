"""Project onto the probability simplex (Duchi et al. 2008, Figure 1)."""

from __future__ import annotations

import torch
from torch import Tensor


def project_to_simplex(values: Tensor) -> Tensor:
    """Return the point nearest to ``values``, shape (n,), whose entries are >= 0 and sum to 1.

    >>> project_to_simplex(torch.tensor([0.5, 1.5, -1.0])).tolist()
    [0.0, 1.0, 0.0]
    """
    ordered = values.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(values) + 1, dtype=values.dtype, device=values.device)
    last = int((ordered > excess).sum()) - 1
    return (values - excess[last]).clamp(min=0)
