"""Mixed precision, and the proximal term under gradient scaling. On a CPU; a GPU's own checks are marked."""

import copy
from typing import Any

import lightning as L
import pytest
import torch
from engine_runs import optimized, variant
from federations import Blobs, Plain, federate, weights
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor

from fl_lightning import AdaFed, ConfigurationError, LocalTraining
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.session import ClientSession, PreparedTask
from fl_lightning.clients.trainer import ClientTrainer
from fl_lightning.functional.model_state import ModelState
from fl_lightning.messages import ClientTask, ServerModel
from fl_lightning.rules import ClientRule, ControlVariates, ProximalRule
from fl_lightning.settings.local_training import Place, resolve_precision

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("local", "outer", "device", "bf16", "expected"),
    [
        ("auto", "32-true", CPU, True, "32-true"),
        ("auto", "32-true", CUDA, True, "bf16-mixed"),
        ("auto", "32-true", CUDA, False, "16-mixed"),
        ("auto", "64-true", CUDA, True, "64-true"),
        ("auto", "16-mixed", CUDA, True, "16-mixed"),
        ("32-true", "16-mixed", CUDA, True, "32-true"),
    ],
)
def test_auto_precision(local, outer, device, bf16, expected, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation=True: bf16)
    assert resolve_precision(LocalTraining(precision=local), outer, device) == expected
    stacked = LocalTraining(engine="stacked")
    assert [resolve_precision(stacked, one, CUDA) for one in ("32-true", "bf16-true")] == ["32-true", "bf16-true"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outer", "own", "types"),
    [
        ("bf16-mixed", "auto", {torch.bfloat16}),
        ("32-true", "bf16-mixed", {torch.bfloat16}),
        ("bf16-mixed", "32-true", {torch.float32}),
    ],
)
def test_mixed_precision_trains_as_well(outer, own, types):
    """The outer Trainer's precision reaches clients and evaluation; the clients' own only them."""
    seen = set()

    def watching(self: Any, batch: Any, batch_idx: int) -> Tensor:
        seen.add(self.net(batch[0]).dtype)
        return Plain.training_step(self, batch, batch_idx)

    accuracy = []
    for flags, precision in (({}, "32-true"), ({"precision": outer}, own)):
        seen.clear()
        local = LocalTraining(max_epochs=2, precision=precision)
        L.seed_everything(0, verbose=False)
        run = federate(variant(training_step=watching)(), 4, strategy=AdaFed("val_acc"), flags=flags, local=local)
        accuracy.append(float(run.callback_metrics["val_acc"]))
        assert torch.isfinite(run.callback_metrics["federation/loss"])
    assert seen == types
    assert accuracy[1] == pytest.approx(accuracy[0], abs=0.05)


class InTheLoss(Plain):
    """Has what a rule adds to the gradient as a term in the loss, through the scaler with it."""

    term: Any = None

    def flat(self) -> Tensor:
        return torch.cat([p.flatten() for p in self.parameters()])

    def on_train_start(self) -> None:
        self.then = self.flat().detach()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss if self.term is None else loss + self.term(self.flat(), self.then)


def session_of(module: Plain, start: Plain, epochs: int, *rules: ClientRule, **broadcast: Tensor) -> ClientSession:
    """A client's session of some epochs from a global model, with rules and what the strategy sends them."""
    server = ModelState(copy.deepcopy(start))
    resident = ResidentModel(module)
    resident.publish(ServerModel(1, 0, server.tensors(), server.layout, broadcast))
    session = ClientSession(resident, Place(local=LocalTraining(max_epochs=epochs), rules=rules))
    session.begin(PreparedTask(ClientTask(0, 0), 0, lambda: Blobs(shuffle=False)))
    return session


def scaled_fit(session: ClientSession, module: Plain, scaler: torch.amp.GradScaler, **flags: Any) -> ClientTrainer:
    """A fit with the session in float16."""
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    plugins = [MixedPrecision("16-mixed", "cpu", scaler)]
    flags |= {"accelerator": "cpu", "max_epochs": -1, "limit_val_batches": 0, **silent}
    run = ClientTrainer(callbacks=[session], plugins=plugins, **flags)
    run.fit(module, Blobs(shuffle=False))
    return run


@pytest.mark.parametrize(("clip", "accumulate"), [(None, 1), (0.05, 2)])
@pytest.mark.parametrize("kind", [ProximalRule, ControlVariates])
def test_rules_under_gradient_scaling_and_clipping(kind, clip, accumulate):
    """float16 with a GradScaler at scale 1024: a term added before unscaling would be 1024 times too small."""
    strength = 0.7 if clip is None else 50.0  # clipped steps are short: pull harder
    L.seed_everything(1, verbose=False)
    start, proximal, results = Plain(lr=0.2), kind is ProximalRule, []
    control = torch.linspace(-0.5, 0.5, sum(p.numel() for p in start.parameters()))
    rule, sent = (kind(strength), {}) if proximal else (kind(), {"control": control})

    def term(now: Tensor, then: Tensor) -> Tensor:
        return strength / 2 * (now - then).pow(2).sum() if proximal else control @ now  # FedProx as its paper writes it

    for in_loss, rules in ((term, ()), (None, (rule,)), (None, ())):
        module = InTheLoss(lr=0.2)
        module.load_state_dict(start.state_dict())
        module.term = in_loss
        session = session_of(module, start, 3, *rules, **sent)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        run = scaled_fit(session, module, scaler, gradient_clip_val=clip, accumulate_grad_batches=accumulate)
        assert scaler.get_scale() == 1024.0  # no step was skipped
        trained = session.end(run.global_step, {})
        assert trained.rates == pytest.approx(0.2 * run.global_step)
        assert (trained.update.normalizer == pytest.approx(run.global_step)) != (proximal and bool(rules))
        results.append(weights(module.net))
    in_loss, ours, without = results
    for name in in_loss:
        torch.testing.assert_close(ours[name], in_loss[name], rtol=1e-3, atol=1e-3)
    assert any((ours[name] - without[name]).abs().max() > 0.01 for name in ours)


def test_steps_that_gradient_scaling_leaves_out_do_not_count():
    """A scale of 2**80 overflows float16's gradients until it has been halved often enough."""
    module = Plain(lr=0.2)
    before = [p.detach().clone() for p in module.parameters()]
    session = session_of(module, module, 1, ProximalRule(0.1))
    run = scaled_fit(session, module, torch.amp.GradScaler("cpu", init_scale=2.0**80, backoff_factor=2.0**-40))
    trained = session.end(run.global_step, {})
    assert trained.update.num_steps < run.global_step
    assert trained.rates == pytest.approx(0.2 * trained.update.num_steps)
    assert any(not torch.equal(p, q) for p, q in zip(module.parameters(), before, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_outer_precision_16_mixed_on_a_gpu_has_no_scaler_for_the_servers_step():
    module = Plain()
    before = weights(module)
    run = federate(module, 2, flags={"precision": "16-mixed"}, accelerator="gpu")
    assert run.global_step == 2
    assert not torch.equal(before["net.0.weight"], weights(module)["net.0.weight"].cpu())
    assert run.precision_plugin.scaler is not None  # put back


Fused = optimized(lambda p: torch.optim.SGD(p, lr=0.1, fused=True))


def test_clipping_with_a_fused_optimizer_under_gradient_scaling_is_refused(monkeypatch):
    """It removes the scale inside its step: gradients that are clipped before would be 1024 times too small afterwards."""
    scaled = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
    monkeypatch.setattr("fl_lightning.clients.fabric.engine.precision_of", lambda *_: scaled)
    clipped = LocalTraining(engine="fabric", gradient_clip_val=0.05)
    with pytest.raises(
        ConfigurationError, match=r"'federation.local.gradient_clip_val' is 0.05, but the fused SGD .* fused=False"
    ):
        federate(Fused(), 1, local=clipped)
    federate(Plain(), 1, local=clipped)
    federate(Fused(), 1, local=LocalTraining(engine="fabric"))
