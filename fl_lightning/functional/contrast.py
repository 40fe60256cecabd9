"""Compare representations of models, as MOON does (Li et al. 2021, eq. 3)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def model_contrast(own: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """Return the mean of ``-log(exp(s_+ / t) / (exp(s_+ / t) + exp(s_- / t)))`` over the examples, a scalar >= 0.

    ``s_+`` and ``s_-`` are the cosine similarities of an example's representation to its positive and its negative one.

    Args:
        own: the representations, shape (N, ...).
        positive: those to which they are drawn, of the same shape.
        negative: those from which they are driven away, of the same shape.
        temperature: the temperature t, > 0.
    """
    near, far = (F.cosine_similarity(own.flatten(1), other.flatten(1)) for other in (positive, negative))
    return F.softplus((far - near) / temperature).mean()
