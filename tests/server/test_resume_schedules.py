"""Schedules that end before the last round, and a server's optimizer that changes at a resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from federations import Plain
from resumed_runs import Cycle, Run, local, run, sgd
from torch import nn

from fl_lightning import (
    ConfigurationError,
    Yogi,
)

# ------------------------------------------------------------------ schedules that end


def test_a_schedule_that_ends_before_the_further_rounds_is_refused(tmp_path):
    run(tmp_path, 2, {"module": Cycle()})
    with pytest.raises(ConfigurationError) as refused:
        run(tmp_path, 3, {"module": Cycle()}, ckpt_path=str(tmp_path / "last.ckpt"))
    text = str(refused.value)
    assert text.startswith(
        "The schedule OneCycleLR ends after 16 steps (Tried to step 17 times."
    )  # 2 rounds, 2 epochs, 4 batches
    assert "but a client takes up to 24 of them in 3 rounds. The run was first started for 2 rounds" in text
    assert "Set 'trainer.max_epochs' to 2, or start a new run for 3 rounds" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "settings", "ends"),
    [
        (Cycle(steps=23), {}, "ends after 23 steps .* up to 24 of them in 3 rounds. Let 'configure_optimizers' give it as"),
        (Cycle(steps=24), {}, ""),
        (Cycle(steps=23, chained="chained"), {}, "ChainedScheduler ends after 23 steps"),
        (Cycle(steps=20, chained="sequential"), {}, "SequentialLR ends after 23 steps"),
        (Cycle(steps=21, chained="sequential"), {}, ""),
        (Cycle(steps=5, interval="epoch"), {}, "ends after 5 steps .* up to 6 of them"),
        (Cycle(steps=6, interval="epoch"), {}, ""),
        (Cycle(steps=7), local(progress="round"), "ends after 7 steps .* up to 8 of them in each round"),
        (Cycle(steps=8), local(progress="round"), ""),
        (Cycle(steps=11), local(accumulate_grad_batches=3), "ends after 11 steps .* up to 12 of them"),
        (Cycle(steps=12), local(accumulate_grad_batches=3), ""),
        (Cycle(steps=3), local(full_batch=True, max_epochs=1), ""),
    ],
)
def test_a_schedule_with_too_few_steps_is_refused_before_the_first_round(module, settings, ends, tmp_path):
    """Plain arithmetic: the largest of the clients has 20 examples, so 4 batches, in 2 epochs of 3 rounds."""
    if not ends:
        run(tmp_path, 3, {"module": module, **settings})
        return
    with pytest.raises(ConfigurationError, match=ends):
        run(tmp_path, 3, {"module": module, **settings})
    assert not (tmp_path / "last.ckpt").exists()


# ------------------------------------------------------------------ the server's optimizer


def resumed(folder: Path, before: Run, now: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights after a round, and after a second one with other settings."""
    first = run(folder, 1, before)
    second = run(folder, 2, now, ckpt_path=str(folder / "last.ckpt"), resume_changed=True)
    return nn.utils.parameters_to_vector(first.parameters()).detach(), nn.utils.parameters_to_vector(
        second.parameters()
    ).detach()


def start() -> torch.Tensor:
    torch.manual_seed(3)
    return nn.utils.parameters_to_vector(Plain().parameters()).detach()


def aggregate(folder: Path, before: Run) -> torch.Tensor:
    """What the clients' models average to in round 1, from the model that ``before`` gives."""
    return resumed(folder, before, sgd(lr=1.0))[1]


def test_a_new_server_rate_takes_effect(tmp_path):
    average = aggregate(tmp_path / "plain", sgd(lr=0.8))
    w1, w2 = resumed(tmp_path / "new", sgd(lr=0.8), sgd(lr=0.25))
    torch.testing.assert_close(w2, w1 - 0.25 * (w1 - average))


def test_a_new_momentum_goes_on_from_the_velocity(tmp_path):
    before = sgd(lr=1.0, momentum=0.5)
    average = aggregate(tmp_path / "plain", before)
    w1, w2 = resumed(tmp_path / "new", before, sgd(lr=0.5, momentum=0.9))
    velocity = start() - w1
    torch.testing.assert_close(w2, w1 - 0.5 * (0.9 * velocity + (w1 - average)))


@pytest.mark.slow
@pytest.mark.parametrize("before", [sgd(lr=0.8), {"server_optimizer": lambda p: torch.optim.Adam(p, lr=0.1)}])
def test_another_server_optimizer_starts_anew(before, tmp_path):
    average = aggregate(tmp_path / "plain", before)
    now = {"server_optimizer": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3, amsgrad=True)}
    w1, w2 = resumed(tmp_path / "new", before, now)
    gradient = w1 - average
    torch.testing.assert_close(w2, w1 - 0.01 * gradient / (gradient.abs() + 1e-3))  # Adam's first step


def test_an_optimizer_with_a_state_from_the_start(tmp_path):
    now = {"server_optimizer": lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.5)}
    average = aggregate(tmp_path / "plain", {})
    w1, w2 = resumed(tmp_path / "new", {}, now)
    gradient = w1 - average
    torch.testing.assert_close(w2, w1 - 0.01 * gradient / (torch.sqrt(0.5 + gradient**2) + 1e-10))
    assert Yogi([nn.Parameter(torch.ones(1))]).defaults["lr"] > 0
