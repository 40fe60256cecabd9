"""What a run says about itself: its configuration, a line on its model, and no output of libraries that concerns no user."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning_utilities.core.rank_zero import log as _lightning
from torch.nn.parameter import is_lazy

import fl_lightning
from fl_lightning.compat import pyyaml
from fl_lightning.compat.lightning import wandb_settings
from fl_lightning.reporting.run_facts import write_run_facts
from fl_lightning.reporting.wandb import describe_run
from fl_lightning.utilities.source_version import source_version


class SaveRunConfig(SaveConfigCallback):
    """Write the whole configuration next to the checkpoints; a resumed run writes it again."""

    describes_runs = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "overwrite": True})

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write nothing yet: a run that is rejected must not leave its settings behind."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write ``config.yaml`` into the run's folder, once."""
        if self.already_saved or not trainer.is_global_zero:
            return
        folder = Path(trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        text = self.parser.dump(self.config, skip_unset=False, skip_validation=True)  # parsed, and so checked
        origin = str(getattr(getattr(trainer, "datamodule", None), "origin", ""))
        for logger in trainer.loggers:
            describe_run(logger, pyyaml.load(text), origin)
        code = source_version(fl_lightning.__version__)
        (folder / self.config_filename).write_text(f"# fl_lightning=={code}\n{text}", encoding="utf-8")
        write_run_facts(trainer, pl_module, folder)
        self.already_saved = True


def describe_model(module: LightningModule) -> str:
    """Describe a module in a line: its network, and the parameters that a client trains and sends.

    Lightning's own table, ``--trainer.enable_model_summary true``, also lists losses and metrics.
    """
    network = getattr(module, "network", None)
    name = type(module).__name__ if network is None else f"{type(network).__name__} in {type(module).__name__}"
    parameters = list(module.parameters())
    if not parameters or any(is_lazy(parameter) for parameter in parameters):
        return f"Model: {name}"
    total, trained = (sum(p.numel() for p in parameters if p.requires_grad or which) for which in (True, False))
    megabytes = sum(p.numel() * p.element_size() for p in parameters if p.requires_grad) / 1e6
    frozen = "" if trained == total else f" of {total:,}"
    size = f"{megabytes:.1f} MB" if megabytes >= 0.1 else f"{megabytes * 1e3:.1f} kB"
    return f"Model: {name}, {trained:,}{frozen} parameters to train ({size})"


def drop_deprecated(loggers: Sequence[Logger]) -> None:
    """Remove an argument from Lightning's W&B loggers that W&B warns about and ignores."""
    for logger in loggers:
        settings = wandb_settings(logger) if isinstance(logger, WandbLogger) else {}
        if settings.get("anonymous", False) is None:
            del settings["anonymous"]


@contextmanager
def without_tips() -> Iterator[None]:
    """Hide Lightning's advertisements and a deprecation warning in its own code; warnings of the user's code are shown."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", module=r"lightning\.")
        no_tip = lambda record: "Tip: For seamless cloud" not in record.getMessage()  # noqa: E731
        with patch.object(_lightning, "filters", [*_lightning.filters, no_tip]):
            yield
