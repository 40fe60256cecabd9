"""Which engine is the fastest, and memory in the order of channels."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from federations import Plain, every_round, federate, same_bits, weights

from fl_lightning import APFL, MOON, ConfigurationError, Ditto, LocalTraining, PFedMe
from fl_lightning.clients.engines.fastest import Trial, attempt, choose


def trials(trainer: float, fabric: float | str, stacked: float | str) -> dict[str, Trial]:
    values = {"trainer": trainer, "fabric": fabric, "stacked": stacked}
    return {name: Trial(refused=x) if isinstance(x, str) else Trial(x) for name, x in values.items()}


@pytest.mark.parametrize(
    ("ranks", "chosen"),
    [
        ([trials(1.0, 0.8, 0.5)], "stacked"),
        ([trials(1.0, 0.99, 0.98)], "trainer"),  # not worth it
        ([trials(1.0, 0.8, "dropout")], "fabric"),
        ([trials(1.0, 0.8, 0.1), trials(1.0, 0.8, 3.0)], "fabric"),
        ([trials(1.0, 0.8, 0.1), {}], "stacked"),
        ([trials(1.0, 0.5, 0.1), trials(1.0, 0.5, "no")], "fabric"),
        ([{}], "trainer"),
    ],
)
def test_the_fastest_engine_that_can_is_chosen(ranks, chosen):
    name, why = choose(ranks)
    assert name == chosen
    assert f"engine '{chosen}'" in why
    assert all(trial.refused in why for rank in ranks for trial in rank.values())


@pytest.mark.parametrize(
    ("error", "told"), [(ConfigurationError("it cannot"), "it cannot"), (MemoryError("too much"), "MemoryError: too much")]
)
def test_an_engine_that_refuses_or_fails_is_left_out(error, told):
    def measure(name: str) -> float:
        if name == "stacked":
            raise error
        return 1.0

    assert attempt(measure)["stacked"].refused == told
    with pytest.raises(type(error), match=str(error)):
        attempt(lambda name: measure("stacked"))


def test_fastest_says_what_it_chose_and_trains_the_same(monkeypatch):
    said: list[str] = []
    monkeypatch.setattr("fl_lightning.clients.local_pool.rank_zero_info", said.append)
    finals = []
    for engine in ("trainer", "fastest"):
        torch.manual_seed(5)
        module = Plain()
        federate(module, 2, local=LocalTraining(engine=engine))
        finals.append(weights(module))
    (sentence,) = said
    assert sentence.startswith("Local training uses the engine '")
    for name in ("trainer", "fabric", "stacked"):
        assert f"{name} " in sentence
    assert all(torch.allclose(finals[0][name], finals[1][name], atol=1e-6) for name in finals[0])


@pytest.mark.parametrize(
    "strategy", [MOON("net.2"), *(pytest.param(s, marks=pytest.mark.slow) for s in (PFedMe(), APFL(), Ditto()))]
)
def test_fastest_leaves_out_an_engine_that_refuses_the_strategys_rule(strategy, monkeypatch):
    """Rules take no part in the timing, where ``stacked`` would be possible and often the fastest."""
    said: list[str] = []
    monkeypatch.setattr("fl_lightning.clients.local_pool.rank_zero_info", said.append)
    monkeypatch.setattr("fl_lightning.clients.engines.fastest._GAIN", math.inf)  # the last possible engine
    federate(Plain(), 1, local=LocalTraining(engine="fastest"), strategy=strategy)
    assert said[0].startswith("Local training uses the engine 'fabric'")
    assert f"stacked is not possible: Stacked clients do not support {type(strategy.client_rule()).__name__}" in said[0]


def test_channels_last_is_the_same_within_rounding():
    class Conv(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(
                torch.nn.Unflatten(1, (1, 2, 2)), torch.nn.Conv2d(1, 3, 2), torch.nn.Flatten(), torch.nn.Linear(3, 3)
            )

    finals = []
    for chosen in (False, True):
        torch.manual_seed(6)
        module = Conv()
        federate(module, 3, local=LocalTraining(channels_last=chosen))
        finals.append(weights(module))
    assert not same_bits(weights(Conv()), finals[0])
    assert all(torch.allclose(finals[0][name], finals[1][name], atol=1e-6) for name in finals[0])


@pytest.mark.slow
def test_fastest_compiles_only_what_is_stacked(monkeypatch):
    said: list[str] = []
    compiled: list[str] = []
    keep = lambda graph, **_: compiled.append(sys._getframe(1).f_globals["__name__"]) or graph  # noqa: E731
    monkeypatch.setattr(torch, "compile", keep)  # a real one takes half a minute: tests/clients/test_stacked.py has it
    monkeypatch.setattr("fl_lightning.clients.local_pool.rank_zero_info", said.append)
    federate(Plain(), 1, local=LocalTraining(engine="fastest", compile=True, max_steps=1, max_epochs=-1))
    assert "trainer " in said[0]
    assert set(compiled) == {"fl_lightning.clients.engines.stacked.step"}


def test_a_resumed_run_keeps_the_engine_that_was_chosen(tmp_path, monkeypatch):
    saved: Any = {
        "local": LocalTraining(engine="fastest"),
        "flags": {"enable_checkpointing": True, "default_root_dir": tmp_path},
    }
    federate(Plain(), 1, every_round(tmp_path), **saved)
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]["FederatedOrchestrator"]
    assert state["engine"] in ("trainer", "fabric", "stacked")
    monkeypatch.setattr("fl_lightning.clients.assembly.time_engines", lambda *_, **__: pytest.fail("tried again"))
    federate(Plain(), 2, ckpt_path=str(tmp_path / "last.ckpt"), **saved)
