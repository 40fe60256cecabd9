"""Nothing but signatures, exports and words for readers knows an option; and options from outside the package."""

import re
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from against_hand import Updates
from command_line import small
from federations import SIZES, Blobs, Plain, every_round, federate, same_bits, weights
from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch.callbacks import EarlyStopping
from own_option import CountBatches, DropNumbers, Hooked, PlansRounds, Sums

import fl_lightning
from fl_lightning import ClientPrivacy, FedAvg, FederationCallback, LocalTraining, Option, TopK
from fl_lightning.core.capabilities import Capability
from fl_lightning.core.option import ClientMetric
from fl_lightning.messages import EvalOrder

ROOT = Path(fl_lightning.__file__).parent
SIGNATURES = ("callbacks/orchestrator.py", "settings/local_training.py", "options/__init__.py")
USERS = {
    *(("options/client_privacy.py", "privacy_account"), ("options/example_privacy/settings.py", "privacy_account")),
    *(("cli/privacy_table.py", "privacy_account"), ("flower/site/commands.py", "secure_aggregation")),
}
"""Beside the signatures: who imports another option, and which."""


def test_only_signatures_know_an_option():
    """The kernel knows hooks alone; mypy refuses a setting that ``FederationSettings`` does not have, such as an option's."""
    found = set()
    for path in ROOT.rglob("*.py"):
        name, others = path.relative_to(ROOT).as_posix(), re.findall(r"fl_lightning\.options\.(\w+)", path.read_text())
        found |= {(name, other) for other in others if not name.startswith((*SIGNATURES, f"options/{other}"))}
    assert found == USERS


class Watch(FederationCallback):
    def __init__(self) -> None:
        self.logged, self.times = [], []

    def on_aggregated(self, trainer, pl_module, updates):
        self.times.append([update.metrics["times"] for update in updates])

    def on_round_end(self, trainer, pl_module, round_idx):
        self.logged.append(float(trainer.callback_metrics["federation/dropped_so_far"]))


def test_options_act_in_order_before_the_transforms():
    """Of the numbers that are left, TopK sends the largest."""
    module = Plain()
    before = torch.cat([tensor.flatten() for tensor in weights(module).values()])
    federate(module, 1, options=[DropNumbers(0.9), DropNumbers(0.9)], transforms=[TopK(1.0, error_feedback=False)])
    after = torch.cat([tensor.flatten() for tensor in weights(module).values()])
    moved = float((after != before).double().mean())
    assert 0.01 < moved < 1 - 0.9 ** len(SIZES)  # two draws of one client are the same, those of different clients differ


class LossAtClients(Hooked):
    """An option that measures the new model on the clients' training parts, and notes when its hooks are called."""

    def __init__(self) -> None:
        self.calls = []

    def measures(self):
        yield ClientMetric("own loss", "val_loss", "training")

    def at_server(self, context):
        self.calls.append(("at_server", context.settings.route.keeps_models, context.removed))
        return super().at_server(context)

    def open(self, federation):
        self.federation = federation
        self.calls.append("open")

    def begin_round(self, round_idx):
        self.before = self.federation.server.vector().clone()

    def before_step(self, result):
        unchanged = torch.equal(self.federation.server.vector(), self.before)
        self.calls.append(("before_step", unchanged, len(result.updates)))

    def end_round(self, round_idx, tasks):
        assert not torch.equal(self.federation.server.vector(), self.before)
        version = self.federation.publish().version
        (report,) = self.federation.pool.evaluate([EvalOrder(version, 1, "training", "own loss")])
        self.calls.append(("end_round", round_idx, sorted(task.client for task in tasks)))
        return {"federation/own_loss": report.value}

    def conclude(self, rounds):
        self.calls.append(("conclude", rounds))


def test_an_option_measures_at_the_clients_and_callbacks_monitor_it():
    option, stop = LossAtClients(), EarlyStopping("federation/own_loss", check_on_train_epoch_end=True)
    module, everyone = Plain(), [*range(len(SIZES))]
    run = federate(module, 2, stop, options=[option])
    around = [(("before_step", True, len(SIZES)), ("end_round", k, everyone)) for k in range(2)]
    assert option.calls == [("at_server", False, frozenset()), "open", *around[0], *around[1], ("conclude", 2)]
    images, labels = (tensor.split(SIZES)[1] for tensor in Blobs().train)
    expected = torch.nn.functional.cross_entropy(module.net(images), labels)
    assert float(run.callback_metrics["federation/own_loss"]) == pytest.approx(float(expected), rel=1e-6)
    assert stop.best_score == run.callback_metrics["federation/own_loss"]  # it falls in each round


@pytest.mark.parametrize(("kind", "argument"), [(DropNumbers, "share"), (ClientPrivacy, "max_norm")])
def test_an_options_arguments_are_checked_before_it_is_built(kind, argument):
    """Their modules postpone annotations, and their bases are dataclasses: text had been taken for a number."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, "option")
    with pytest.raises(ArgumentError, match=r"Expected a <class 'float'>. Got value: abc"):
        parser.parse_args([f"--option.{argument}=abc"])


def test_an_option_may_state_that_it_tells_nothing():
    class Silent(DropNumbers):
        def needs(self):
            return [need for need in super().needs() if need.capability is not Capability.OPEN_CHANGES]

    private = ClientPrivacy(0.5, 1.0, "local", noise_seed=7)
    module = Plain()
    before = weights(module)
    run = federate(module, 1, strategy=FedAvg("uniform"), options=[Silent()], transforms=[private])
    assert run.callback_metrics["federation/dropped_so_far"] > 0
    assert not same_bits(weights(module), before)


class Nothing(Option):
    """An option without hooks."""


@pytest.mark.slow
@pytest.mark.parametrize("option", [DropNumbers(0.0), Nothing(), Sums(), PlansRounds()])
def test_an_option_that_changes_nothing_trains_as_without_it(option):
    one, other = Plain(), Plain()
    other.load_state_dict(one.state_dict())
    with patch.object(Sums, "round_sums", autospec=True, side_effect=Sums.round_sums) as asked:
        federate(one, 2, strategy=FedAvg(), options=[option])
    assert asked.call_count == (2 if isinstance(option, Sums) else 0)
    federate(other, 2, strategy=FedAvg())
    assert same_bits(weights(one), weights(other))


def test_the_state_of_an_option_is_resumed_and_a_changed_option_is_not(tmp_path):
    whole, halves, last = Watch(), Watch(), str(tmp_path / "last.ckpt")
    federate(Plain(), 3, whole, options=[DropNumbers(0.3)])
    federate(Plain(), 1, halves, every_round(tmp_path), options=[DropNumbers(0.3)], flags={"enable_checkpointing": True})
    with pytest.raises(fl_lightning.CheckpointError, match=r"federation\.options"):
        federate(Plain(), 2, options=[DropNumbers(0.4)], ckpt_path=last)
    federate(Plain(), 3, halves, options=[DropNumbers(0.3)], ckpt_path=last)
    assert halves.times == whole.times
    assert halves.logged[0] < halves.logged[1] < halves.logged[2]
    assert halves.logged == whole.logged


def test_an_option_in_a_configuration(fl, tmp_path):
    options = "--federation.options=[{class_path: own_option.DropNumbers, init_args: {share: %s}}]"
    folder = [f"--trainer.default_root_dir={tmp_path}", f"--last_checkpoint.dirpath={tmp_path}/saved"]
    status, text = small(fl, *folder, options % 2)
    assert status != 0
    assert "'federation.options.share' must be from 0 to 1, but is 2" in text
    assert "Traceback" not in text
    status, text = small(fl, *folder, options % 0.2)
    assert status == 0, text
    state = torch.load(tmp_path / "saved" / "last.ckpt", weights_only=True)["callbacks"]["FederatedOrchestrator"]
    assert state["options"]["options.0"]["total"] > 0


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_an_option_follows_the_work_of_clients(engine):
    option, updates = CountBatches(), Updates()
    federate(Plain(), 2, updates, options=[option], local=LocalTraining(engine=engine))
    seen, everyone = [update for own in updates.rounds for update in own], [*range(len(SIZES))]
    assert option.charged == [everyone, everyone]
    assert all(update.metrics == {"mine": 1.0} for update in seen)
    assert option.told == sum((Counter({update.client: update.num_steps}) for update in seen), Counter())
