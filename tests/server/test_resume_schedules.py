"""Schedules that end before the last round, and a server's optimizer that changes at a resume."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from federations import Plain
from resumed_runs import Cycle, Run, local, run, sgd
from torch import nn

from fl_lightning import Checkpoints, ConfigurationError, Faults


def test_a_schedule_that_ends_before_the_further_rounds_is_refused(tmp_path):
    run(tmp_path, 2, {"module": Cycle()})
    with pytest.raises(ConfigurationError, match=r"OneCycleLR failed \(ValueError: Tried to step 1. times.* start a new run"):
        run(tmp_path, 3, {"module": Cycle()}, ckpt_path=str(tmp_path / "last.ckpt"))


@pytest.mark.parametrize(
    ("steps", "settings", "when"),
    [
        (15, {}, "round 1, client 1"),  # the largest client takes 8 steps a round, the others fewer
        (15, {"faults": Faults("skip", retries=2)}, "round 1, client 1"),
        (15, {"clients_per_round": 1, **local(engine="fabric")}, "round [12], client [012]"),
        (5, local(engine="stacked"), ""),
        (7, local(progress="round"), "round 0, client 1"),
        (24, {"faults": Faults("skip", retries=2)}, None),
    ],
)
def test_a_schedule_with_too_few_steps_ends_the_run_in_its_round(steps, settings, when, tmp_path):
    """Whoever comes to its end is named, and neither tried again nor left out: the next client would fail alike."""
    chosen = {"module": Cycle(steps=steps), **settings}
    if when is None:
        run(tmp_path, 3, chosen)
        return
    with pytest.raises(ConfigurationError, match=r"The schedule OneCycleLR failed \(ValueError: Tried to step") as caught:
        run(tmp_path, 3, chosen)
    assert re.search(when, " ".join(getattr(caught.value, "__notes__", [])))


CHANGED = Checkpoints(resume_changed=True)


def resumed(folder: Path, before: Run, now: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights after a round, and after a second one with other settings."""
    first = run(folder, 1, before)
    second = run(folder, 2, now, ckpt_path=str(folder / "last.ckpt"), checkpoints=CHANGED)
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
