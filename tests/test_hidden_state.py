"""What modules hide from a copy, a turn or a round: such a federation is plain Lightning all the same, or says why not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from federations import Plain
from plain_training import distance_from_plain
from torch.nn import functional as F

ENGINES = ["trainer", "fabric"]


# ---------------------------------------------------------------- precision


class OwnAutocast(Plain):
    """Casts its own forward pass, as many modules do; torch caches the cast weights until the outermost context ends."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            logits = self(batch[0])
        return F.cross_entropy(logits.float(), batch[1])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_module_with_its_own_autocast_trains_on_its_weights_of_now(engine, precision):
    assert distance_from_plain(OwnAutocast, engine, dtype=torch.float32, precision=precision) < 1e-6


class MakesTensors(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        seen.add(torch.zeros(1).dtype)
        return super().training_step(batch, batch_idx)


seen: set[Any] = set()


@pytest.mark.parametrize("engine", ENGINES)
def test_new_tensors_have_the_users_default_type(engine):
    torch.set_default_dtype(torch.float64)
    try:
        for precision in ("32-true", "64-true"):
            seen.clear()
            distance_from_plain(MakesTensors, engine, rounds=1, precision=precision)
            assert seen == {torch.float64}
    finally:
        torch.set_default_dtype(torch.float32)
