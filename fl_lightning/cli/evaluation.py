"""The command ``fl-lightning evaluate``: models x sites, as a table, a file and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from torchmetrics import Metric

from fl_lightning.compat.pyyaml import load
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.evaluation.run import Evaluation, evaluate
from fl_lightning.evaluation.tables import COLUMNS, draw, in_words, markdown, points_of_curves, rows_of
from fl_lightning.flower.site.recipe import Recipe, default_classes
from fl_lightning.flower.values import public_path
from fl_lightning.reporting.tables import log_table, text_table
from fl_lightning.utilities.csv_file import write_csv

FOLDER = "evaluation"
"""The folder of the results in that of the run."""


def run_evaluation(
    trainer: Trainer,
    settings: Any,
    model: LightningModule,
    data: FederatedDataModule,
    checkpoints: Sequence[str],
    metrics: Sequence[Metric],
    limits: Mapping[str, Any],
) -> None:
    """Evaluate, print the matrix, and write it to the folder of the run and to W&B.

    Raises:
        ConfigurationError: if no checkpoint or no metric is named.
    """
    root = Path(trainer.default_root_dir)
    best = root / "checkpoints" / "best.ckpt"
    if not checkpoints and not best.exists():
        raise ConfigurationError(
            f"'evaluate' needs a checkpoint of a federation, but there is no '{best}'. Name one with '--checkpoints', or set "
            "'trainer.default_root_dir' to the folder of a run."
        )
    named = _named(trainer, metrics)

    def build(values: Mapping[str, Any]) -> Metric:
        recipe = Recipe(default_classes() | {public_path(type(metric)) for metric in metrics})
        return recipe.build(values, Metric, "metrics")  # type: ignore[no-any-return]

    asked = Evaluation(checkpoints=[Path(one) for one in checkpoints or [str(best)]], metrics=named, build=build, **limits)
    cells = evaluate(trainer, settings, model, data, asked)
    if not trainer.is_global_zero:
        return
    _write(trainer, cells, asked, root / FOLDER)


def _write(trainer: Trainer, cells: Sequence[Any], asked: Evaluation, folder: Path) -> None:
    """Write the results into a folder and to the loggers, and print the matrix."""
    rows = rows_of(cells)
    write_csv(folder / "evaluation.csv", COLUMNS, rows)
    header, points = points_of_curves(cells)
    if points:
        write_csv(folder / "curves.csv", header, points)
    (folder / "evaluation.md").write_text(markdown(cells, asked.part, asked.level), encoding="utf-8")
    drawn = [name for name in asked.metrics if draw(cells, name, folder / f"{name}.png")]
    log_table(trainer, "evaluation", COLUMNS, rows)
    if points:
        log_table(trainer, "evaluation_curves", header, points)
    for logger in trainer.loggers:
        logger.finalize("success")
    print(text_table(("model", "metric", "site", "value"), [(c.model, c.metric, c.site, _shown(c.report)) for c in cells]))
    print(f"Evaluation: {folder} ({', '.join(sorted(path.name for path in folder.iterdir()))})")
    if not drawn and any(row[4] is not None for row in rows):
        print("No heat map: matplotlib is not installed. Install fl_lightning[plots].")


def _shown(report: Any) -> str:
    return in_words(report) if not report.reason else f"{in_words(report)} {report.reason}".removeprefix("- ")


def _named(trainer: Trainer, metrics: Sequence[Metric]) -> dict[str, dict[str, Any]]:
    """Return the metrics by the names of their classes, numbered if several have the same.

    Their values are those of the command line, with the paths by which sites know their classes.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    saved = next(callback for callback in callbacks if isinstance(callback, SaveConfigCallback))
    values = load(saved.parser.dump(saved.config, skip_unset=False, skip_validation=True))["metrics"] or []
    kinds, named = [type(metric) for metric in metrics], {}
    for k, (kind, value) in enumerate(zip(kinds, values, strict=True)):
        name = kind.__name__ if kinds.count(kind) == 1 else f"{kind.__name__} {kinds[: k + 1].count(kind)}"
        named[name] = {"class_path": public_path(kind), "init_args": dict(value.get("init_args") or {})}
    return named
