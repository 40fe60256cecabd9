"""What a client's module reads of the run around it: logger, checkpoints, metrics, its own attributes."""

import re
from enum import Enum
from operator import attrgetter
from typing import Any

import lightning as L
import pytest
import torch
from engine_runs import variant
from federations import Blobs, Consecutive, Plain, every_round, federate, network, trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import Tensor

from fl_lightning import AdaFed, ClientEvaluation, ConfigurationError, FederatedDataModule, FederatedOrchestrator, LocalTraining
from fl_lightning.clients.outer_run import SilentLogger

SEEN: list[Any] = []


class Asking(Plain):
    """Reads its Trainer and logger in training and validation."""

    def on_train_epoch_end(self) -> None:
        metrics = self.trainer.callback_metrics
        if not self.current_epoch:
            return  # nothing has been validated yet
        SEEN.append((self.trainer.checkpoint_callback, "val_acc" in metrics, metrics.get("val_acc"), metrics["val_acc"]))
        logger = self.logger
        SEEN.append((logger.name, logger.version, logger.save_dir, logger.log_dir, logger.root_dir))


@pytest.mark.parametrize(("engine", "kind"), [("trainer", CSVLogger), ("fabric", TensorBoardLogger)])
def test_names_and_folders_are_those_of_the_users_logger(engine, kind, tmp_path):
    SEEN.clear()
    logger, saver = kind(tmp_path, name="mine", version=3), every_round(tmp_path)
    flags = {"logger": logger, "enable_checkpointing": True}
    run = federate(Asking(), 2, saver, flags=flags, local=LocalTraining(engine=engine))
    assert len(SEEN) == 2 * 3
    assert SEEN[1::2] == [("mine", 3, str(tmp_path), str(tmp_path / "mine/version_3"), str(tmp_path / "mine"))] * 3
    for found, listed, got, _ in SEEN[::2]:
        assert found is saver
        assert (listed, got) == (False, None)  # a schedule that follows val_acc must not step with the server's
    assert run.global_step == 2


def public(value: Any) -> list[str]:
    return [name for name in dir(value) if not name.startswith("_")]


def paths(trainer: L.Trainer) -> list[str]:
    """Every public attribute of a Trainer, with every one of theirs, and of the enumerations in its state."""
    found = [f"state.{part}.{name}" for part in ("fn", "stage", "status") for name in public(getattr(trainer.state, part))]
    for name in public(trainer):
        found += [name, *(f"{name}.{inner}" for inner in public(getattr(trainer, name, None)))]
    return found


def looked_up(engine: str) -> dict[tuple[str, str], Any]:
    """What clients read of their Trainer in hooks, by hook and path; 'refused' where an engine does not answer."""
    found: dict[tuple[str, str], Any] = {}

    class Reading(Plain):
        def look(self, hook: str) -> None:
            if self.trainer.max_epochs != 2:
                return  # not a client's
            found[hook, "is a Trainer"] = isinstance(self.trainer, L.Trainer)
            PATHS.extend([] if PATHS else paths(self.trainer))
            for path in PATHS:
                try:
                    value = attrgetter(path)(self.trainer)
                except ConfigurationError as error:
                    value = re.sub(rf"'trainer\.{path.partition('.')[0]}[\w.]*'", "it", str(error))
                except Exception as error:
                    value = type(error).__name__
                plain = value is None or isinstance(value, bool | int | float | str | Enum)
                found.setdefault((hook, path), (type(value), value) if plain else "an object")

        def on_fit_start(self) -> None:
            self.look("on_fit_start")

        def on_train_start(self) -> None:
            self.look("on_train_start")

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.look(f"training_step {batch_idx}")
            return super().training_step(batch, batch_idx)

        def on_train_epoch_end(self) -> None:
            self.look("on_train_epoch_end")

    try:
        federate(Reading(), 1, local=LocalTraining(engine=engine, max_epochs=2, gradient_clip_val=0.5))  # type: ignore[arg-type]
    except ConfigurationError:
        assert engine == "fabric"  # the module went on without an answer, so its turn counts for nothing
    return found


PATHS: list[str] = []
REFUSAL = (
    "Reading asks for it, which the engine 'fabric' of local training does not provide. Set "
    "'federation.local.engine' to 'trainer'."
)


def test_fabric_answers_what_a_trainer_does_or_refuses_by_name():
    expected, found = looked_up("trainer"), looked_up("fabric")
    refused = {place for place, value in found.items() if value == (str, REFUSAL)}
    other = [(place, expected[place], found[place]) for place in found.keys() - refused if found[place] != expected[place]]
    assert not other
    answered = {path for _, path in found.keys() - refused}
    assert answered >= {"state.stage.value", "state.stage.dataloader_prefix", "state.status", "gradient_clip_algorithm.value"}
    assert {path for _, path in refused} >= {
        "fit_loop",
        "strategy.reduce",
        "precision_plugin.clip_gradients",
        "save_checkpoint",
    }


def test_at_a_site_there_is_no_logger_around():
    silent = SilentLogger()
    assert (silent.name, silent.version, silent.save_dir, silent.log_dir, silent.root_dir) == ("", "", None, None, None)
    experiment = silent.experiment
    experiment.add_image("picture", 0)
    experiment.config.update({"width": 8})
    experiment.summary["best"] = 1
    experiment["train/loss"].append(1.0)
    with experiment.start_run() as run:
        run.log({"a": 1})
    assert list(experiment.history) == []


def test_parts_in_evaluation_mode_are_named_once():
    module = Plain(batchnorm=True)
    module.net[1].eval()
    module.frozen = network(batchnorm=True).requires_grad_(False).eval()
    with pytest.warns(UserWarning, match=r"1 part of Plain that is trained is in evaluation mode \('net.1'\)") as caught:
        federate(module, 2, data=Blobs(41))
    assert torch.equal(module.frozen[1].running_mean, torch.zeros(8))
    assert sum("evaluation mode" in str(warning.message) or "eval mode" in str(warning.message) for warning in caught) == 1


class Centred(Plain):
    """Finds the mean of its targets at the start of training, and predicts from it; it counts its steps as well."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.steps, self.name = 0.0, 0, "at first"

    def on_train_start(self) -> None:
        self.mean, self.name = 2.0, "later"

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.steps += 1
        return super().training_step(batch, batch_idx)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x - self.mean)


@pytest.mark.parametrize(("more", "names"), [({}, ["'mean', 'name'"]), ({"client_state": ("mean", "name")}, [])])
def test_what_clients_keep_and_validation_may_read_is_named_once(more, names, recwarn):
    federate(variant(Centred, **more)(), 2)
    told = [str(one.message) for one in recwarn if "the server evaluates with that of the start" in str(one.message)]
    assert [one.partition("Training changed ")[2].partition(" of Variant.")[0] for one in told] == names


class Follows(Plain):
    """Steps its schedule and logs its rate in validation."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.25)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 50)]

    def on_validation_epoch_end(self) -> None:
        self.lr_schedulers().step()
        self.log("rate", self.optimizers().param_groups[0]["lr"])


def test_validation_may_read_optimizers_and_schedules(tmp_path):
    module = Follows()
    run = trainer(2, FederatedOrchestrator(client_evaluation=ClientEvaluation(1, "val_acc")), default_root_dir=tmp_path)
    data = FederatedDataModule(Blobs(), Consecutive(), client_test=0.3)
    with pytest.warns(UserWarning, match=r"The validation of Follows reads its optimizers or schedules\. They are") as told:
        run.fit(module, data)
    assert float(run.callback_metrics["rate"]) == 0.25
    assert 1 <= sum("reads its optimizers" in str(one.message) for one in told) <= 2
    assert not {"optimizers", "lr_schedulers"} & vars(module).keys()
    assert isinstance(module.configure_optimizers()[0][0], torch.optim.SGD)


def test_figures_are_closed(tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")

    def draw(self: Any, *_: Any) -> None:
        self.logger.experiment.add_figure("figure", pyplot.figure())

    drawing = variant(on_train_batch_end=draw, on_validation_batch_end=draw)
    federate(drawing(), 1, flags={"logger": TensorBoardLogger(tmp_path)}, strategy=AdaFed("val_acc"))
    assert not pyplot.get_fignums()


def test_an_evaluation_finds_the_attributes_of_the_start():
    """A counter that training moves does not reach the validation of a client's model."""

    def count(self: Any, *_: Any) -> None:
        self.steps += 1

    SEEN.clear()
    look = lambda self, *_: SEEN.append(self.steps)  # noqa: E731
    federate(variant(steps=0, on_train_batch_end=count, on_validation_batch_end=look)(), 2, strategy=AdaFed("val_acc"))
    assert len(SEEN) > 2 * 3
    assert set(SEEN) == {0}
