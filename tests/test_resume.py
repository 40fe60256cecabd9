"""Every algorithm stops and goes on with the weights of the uninterrupted run, bit for bit."""

from __future__ import annotations

import pytest
from algorithms import ALGORITHMS, outcome, prepare
from federations import every_round, same_bits, trainer


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_resumed_run_is_the_uninterrupted_one(name, tmp_path):
    module, data, federation = prepare(name)
    trainer(3, federation).fit(module, data)
    expected = outcome(module, federation)

    module, data, federation = prepare(name)
    trainer(2, federation, every_round(tmp_path), enable_checkpointing=True).fit(module, data)
    halfway = outcome(module, federation)

    module, data, federation = prepare(name)  # nothing of the first half is left but the checkpoint
    run = trainer(3, federation)
    run.fit(module, data, ckpt_path=str(tmp_path / "last.ckpt"))
    assert run.global_step == 3
    assert same_bits(outcome(module, federation), expected)
    assert not same_bits(halfway, expected)
