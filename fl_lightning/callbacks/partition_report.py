"""A report of each client's data, before training begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from torch.utils.data import ConcatDataset, Subset

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.input_statistics import input_histograms, input_moments
from fl_lightning.data.labels import labels_at_hand, names_of
from fl_lightning.data.remote import RemoteDatasets
from fl_lightning.data.schema import categories_of, channel_names, schema_of
from fl_lightning.errors import require
from fl_lightning.functional.exact_moments import Moments, together
from fl_lightning.functional.histograms import Cuts, cuts_of, shown_counts, without_few
from fl_lightning.functional.small_counts import without_small
from fl_lightning.reporting.feature_charts import draw_features
from fl_lightning.reporting.features import FeatureSummary
from fl_lightning.reporting.partition import PartitionSummary, draw_partition
from fl_lightning.reporting.tables import log_table
from fl_lightning.utilities.argument_types import ChecksTypes

_MOST_CLASSES = 1_000
"""Largest whole number that counts as a class; labels above it are treated as other values."""


class PartitionReport(ChecksTypes, Callback):
    """Show the partition when a fit starts: a table on the terminal, ``partition.csv``, ``partition.png``, and W&B.

    The report shows classes if the partitioner has read the labels, or if the dataset provides them without reading every
    example. The picture needs matplotlib.

    Args:
        enabled: whether a fit shows the report; ``fl-lightning partition`` always does.
        max_clients: largest number of rows of the table on the terminal, >= 1; the files contain all clients.
        features: whether to read the inputs, too, and show the mean, deviation and missing share of each feature, and the
            client that differs most: a table on the terminal and ``features.csv``; and how many examples of a table are in
            each bin, in ``histograms.csv`` and ``features.png``. ``fl-lightning describe`` always does.
        min_count: the fewest examples in a bin that is told, >= 1; smaller counts are left out, and those from which they would
            follow. Sites have a limit of their own.
    """

    def __init__(self, enabled: bool = True, max_clients: int = 20, features: bool = False, min_count: int = 10) -> None:
        require(max_clients >= 1, "partition_report.max_clients", "at least 1", max_clients)
        self.enabled = enabled
        self.max_clients = max_clients
        require(min_count >= 1, "partition_report.min_count", "at least 1", min_count)
        self.features, self.min_count = features, min_count
        self._summary: PartitionSummary | None = None

    @property
    def reads_inputs(self) -> bool:
        """Return whether a fit shows what the features are like, so that sites are asked for it."""
        return self.enabled and self.features

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the partition, on the first rank."""
        data = getattr(trainer, "datamodule", None)
        quick: bool = trainer.fast_dev_run  # type: ignore[attr-defined]
        if self.enabled and not quick and trainer.is_global_zero and isinstance(data, FederatedDataModule):
            summary = self.show(data, Path(trainer.default_root_dir))
            if self.features:
                self.show_features(data, Path(trainer.default_root_dir))
            self._summary = summary

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Send the table to W&B, once rounds are its x-axis: before, each row has one of Lightning's, and it a panel."""
        summary, self._summary = self._summary, None
        if summary is not None and any(isinstance(logger, WandbLogger) for logger in trainer.loggers):
            log_table(trainer, "partition", summary.columns, summary.rows, 0, **_picture(trainer))

    def show(self, data: FederatedDataModule, folder: Path | None) -> PartitionSummary:
        """Print the table, and write the files into a folder.

        Args:
            data: a datamodule after ``setup('fit')``.
            folder: folder of the run; None writes no files.
        """
        summary = summarize(data)
        print(summary.text(self.max_clients))
        if folder is None:
            return summary
        folder.mkdir(parents=True, exist_ok=True)
        summary.write(folder / "partition.csv")
        files = "partition.csv"
        if draw_partition(summary, folder / "partition.png"):
            files += ", partition.png"
        else:
            files += " (a picture needs matplotlib: pip install 'fl_lightning[plots]')"
        print(f"Partition: {folder} ({files})")
        return summary

    def show_features(self, data: FederatedDataModule, folder: Path | None) -> None:
        """Print what the features are like at the clients, and write the file into a folder.

        Args:
            data: a datamodule after ``setup('fit')``.
            folder: folder of the run; None writes no file.

        Raises:
            ConfigurationError: if a client outside this process does not tell the sums of its inputs.
            DataError: if the inputs cannot be measured.
        """
        summary = summarize_features(data, self.min_count)
        print(summary.text(self.max_clients))
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        summary.write(folder / "features.csv")
        files = "features.csv"
        if any(counts for own in summary.bins for counts in own):
            summary.write_bins(folder / "histograms.csv")
            files += ", histograms.csv" + (", features.png" if draw_features(summary, folder / "features.png") else "")
        print(f"Features: {folder} ({files})")


def summarize(data: FederatedDataModule) -> PartitionSummary:
    """Summarize each client's data after ``setup('fit')``, by the true labels, not those of attackers."""
    source = data.client_datasets
    division, counts, classes = source.splits, source.counts_at_hand(_MOST_CLASSES), []
    clients, public = range(len(division.training)), torch.tensor([division.public.numel()])
    if counts is not None and source.labels is not None:
        dataset: Any = source.source.dataset
        size = counts.shape[1]
        changed = isinstance(dataset, Subset | ConcatDataset) and labels_at_hand(dataset) is None  # names inside may not fit
        known = () if changed else names_of(dataset, "classes") or list(getattr(dataset, "classes", None) or ())
        classes = [str(name) for name in (known if len(known) == size else range(size))]
        public = torch.bincount(source.labels[division.public], minlength=size)
    parts = {name: getattr(division, name) for name in ("training", "validation", "test")}
    sizes = {name: part.sizes for name, part in parts.items() if part is not None}
    streams = None if source.whole else torch.tensor([source.size_is_unknown(client) for client in clients])
    return PartitionSummary([data.client_name(client) for client in clients], sizes, counts, classes, public, streams)


def summarize_features(data: FederatedDataModule, min_count: int = 10) -> FeatureSummary:
    """Measure the features of each client's training examples, after ``setup('fit')``.

    Args:
        data: the datamodule.
        min_count: the fewest examples in a bin that is told.
    """
    clients = range(data.num_clients)
    moments = [input_moments(data, client) for client in clients]
    whole = together(moments)
    channels = len(whole.counts)
    schema = schema_of(data.datamodule)
    fits = schema is not None and len(schema.feature_names) == channels
    shown = [data.client_name(k) for k in clients], [data.num_examples(k) for k in clients]
    cuts = cuts_of(whole, schema.cuts if schema is not None and fits else ())
    bins = [_bins(data, client, cuts, whole, own, min_count) for client, own in enumerate(moments)]
    return FeatureSummary(channel_names(data, channels), *shown, moments, cuts, bins, data.is_remote)


def _bins(
    data: FederatedDataModule, client: int, cuts: Cuts, whole: Moments, own: Moments, min_count: int
) -> list[tuple[int | None, ...]]:
    """Return how many of a client's examples are in each bin, without counts of few rows; sites tell sums alone."""
    if isinstance(data.client_datasets, RemoteDatasets):
        return shown_counts(whole, [()] * len(cuts), own)
    counts = [without_few(one, min_count) for one in input_histograms(data, client, cuts)]
    return shown_counts(whole, counts, without_small(own, categories_of(data.datamodule, len(cuts)), min_count))


def _picture(trainer: Trainer) -> dict[str, Any]:
    import wandb  # slow to import, and only its logger needs it

    path = Path(trainer.default_root_dir) / "partition.png"
    return {"partition_picture": wandb.Image(str(path))} if path.exists() else {}
