"""Evaluate a federation's models at its clients, in this process or over a network."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torchmetrics import Metric

from fl_lightning.clients.answering import Questions
from fl_lightning.clients.module_copy import client_copy
from fl_lightning.core.capabilities import Capability, removals_of
from fl_lightning.core.federation import ClientPool, parts_of
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.evaluation.client_models import state_of_federation
from fl_lightning.evaluation.matrix import Asking, Cell
from fl_lightning.evaluation.models import Model, models_of, models_of_others
from fl_lightning.functional.model_state import ModelState
from fl_lightning.messages import Part, Question, ServerModel
from fl_lightning.server.fit import Assembly
from fl_lightning.server.run_state import RunState
from fl_lightning.server.takeover import set_threads
from fl_lightning.utilities.checkpoints import read_checkpoint


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Say what is evaluated, and on what.

    Attributes:
        checkpoints: the federation's checkpoint, and checkpoints of others.
        metrics: the metrics as values, by name.
        part: the part of each client's examples.
        resamples: the number of bootstrap resamples behind an interval, from 0 to 10,000.
        level: the share of the resamples' values within the interval, in (0, 1).
        least: the fewest examples or persons behind a figure of simulated clients, >= 1; sites have their own limit.
        build: returns the metric that values describe.
    """

    checkpoints: Sequence[Path]
    metrics: Mapping[str, Mapping[str, Any]]
    part: Part = "test"
    resamples: int = 1000
    level: float = 0.95
    least: int = 1
    build: Callable[[Mapping[str, Any]], Metric] = field(repr=False)

    def __post_init__(self) -> None:
        require(0 <= self.resamples <= 10_000, "resamples", "from 0 to 10000", self.resamples)
        require(0 < self.level < 1, "level", "above 0 and below 1", self.level)
        require(self.least >= 1, "min_examples", "1 or above", self.least)
        if not self.metrics:
            raise ConfigurationError(
                "'evaluate' needs a metric, but 'metrics' is empty. Name a torchmetrics class, such as '--metrics+ "
                "torchmetrics.classification.MulticlassAccuracy --metrics.num_classes 10'."
            )


def refuse_hidden_figures(settings: Any, trainer: Trainer) -> None:
    """Refuse settings under which no figure of a single client may be told, and several ranks.

    Raises:
        ConfigurationError: naming the setting.
    """
    for removal in removals_of(parts_of(settings), Capability.SINGLE_FIGURES):
        raise ConfigurationError(
            f"'evaluate' measures each client, but {removal.because}. For this command alone, {removal.remedy}: sites then "
            "answer questions, and train nothing (docs/metrics.md)."
        )
    if trainer.world_size > 1:
        raise ConfigurationError(
            f"'evaluate' runs in one process, but the Trainer has {trainer.world_size}. Set 'trainer.devices' to 1."
        )


def evaluate(
    trainer: Trainer, settings: Any, module: LightningModule, data: FederatedDataModule, asked: Evaluation
) -> list[Cell]:
    """Return the cells of the matrix.

    Args:
        trainer: the user's Trainer, which does not run.
        settings: the federation's settings.
        module: the user's module.
        data: the data.
        asked: what is evaluated.

    Raises:
        CheckpointError: if a checkpoint cannot be read, is of another model, or not of this federation's clients.
        ConfigurationError: if the settings do not allow it.
    """
    refuse_hidden_figures(settings, trainer)
    source, *others = asked.checkpoints
    checkpoint = read_checkpoint(source, "cpu", settings.checkpoints.trusted_classes)
    state = state_of_federation(checkpoint, source)
    _attach(trainer, module, data)
    with _clients(trainer, settings, module, data, checkpoint, state) as pool:
        names = [data.client_name(client) for client in range(data.num_clients)]
        _require_same_clients(state, names, source)
        if asked.part != "training" and not data.clients_hold(asked.part):
            raise ConfigurationError(
                f"'part' is {asked.part}, but the clients have no {asked.part} parts. Set 'data.client_{asked.part}' to the "
                "share of its examples that each client holds back, e.g. 0.2, as in the fit; or choose another part."
            )
        models = models_of(module, checkpoint, state, source, names)
        publish = _publisher(pool, module, state, int(checkpoint["epoch"]))
        module.load_state_dict(checkpoint["state_dict"])
        if not pool.simulated and (settings.route.keeps_models or settings.strategy.own_models or state.get("held")):
            models += [Model(f"own of {name}", client=client) for client, name in enumerate(names)]
        models += models_of_others(module, others, settings.checkpoints.trusted_classes)
        module.load_state_dict(checkpoint["state_dict"])
        metrics = {name: asked.build(values) for name, values in asked.metrics.items()}
        questions = {name: Question(values, asked.resamples, asked.level) for name, values in asked.metrics.items()}
        if pool.simulated:
            local: Any = pool
            local.client.questions = Questions(asked.build, asked.least)
        return Asking(pool, publish, names, asked.part, questions, metrics).cells(models)


def _attach(trainer: Trainer, module: LightningModule, data: FederatedDataModule) -> None:
    """Let the parts find each other, as at the start of a fit, and build networks that the module builds there."""
    trainer.datamodule, data.trainer = data, trainer  # type: ignore[attr-defined]
    trainer.strategy.connect(module)
    module.trainer = trainer
    data.prepare_data()
    data.setup("fit")
    for hook, arguments in (("configure_model", ()), ("setup", ("fit",))):
        if is_overridden(hook, module):
            getattr(module, hook)(*arguments)


@contextmanager
def _clients(
    trainer: Trainer,
    settings: Any,
    module: LightningModule,
    data: FederatedDataModule,
    checkpoint: Mapping[str, Any],
    state: Mapping[str, Any],
) -> Iterator[ClientPool]:
    """Connect to the clients, which know the federation by the id that its checkpoint has, and end the connection."""
    run = RunState(settings)
    run.run_id = state["federation"]
    module.load_state_dict(checkpoint["state_dict"])
    pool: ClientPool | None = None
    cleanup = ExitStack()
    try:
        set_threads(settings.local.threads, trainer, cleanup)
        if settings.pool is not None:
            data.register_clients(settings.pool.open(trainer, settings))
        assembly = Assembly(settings, run, trainer, module, client_copy(module).to(trainer.strategy.root_device))
        pool = assembly.pool()
        yield pool
    finally:
        if pool is not None:
            pool.close()
        if settings.pool is not None:
            settings.pool.close()
        data.teardown("fit")
        cleanup.close()


def _require_same_clients(state: Mapping[str, Any], names: Sequence[str], source: Path) -> None:
    known = list(state.get("client_names", []))
    if int(state["clients"]) != len(names) or (known and names != known):
        raise ConfigurationError(
            f"'{source}' is of a federation of {state['clients']} clients ({', '.join(known[:5]) or 'without names'}), but "
            f"this configuration has {len(names)} ({', '.join(names[:5])}). Use the configuration of the run: its config.yaml."
        )


def _publisher(pool: ClientPool, module: LightningModule, state: Mapping[str, Any], round_idx: int) -> Callable[[Model], int]:
    """Return a function that publishes a model: complete, or without the parts that its clients hold."""
    versions = count(1 + secrets.randbits(40))  # a site answers a request that it knows from its store

    def publish(model: Model) -> int:
        view = ModelState(module)
        if not model.tensors:
            view.set_apart(state.get("moving", ()), state.get("held", ()), next(iter(state.get("unsent", ())), None))
        tensors = model.tensors or {name: tensor.detach().cpu().clone() for name, tensor in view.tensors().items()}
        sent = ServerModel(next(versions), round_idx, tensors, view.layout, first=view.held_tensors())
        pool.publish(sent)
        return sent.version

    return publish
