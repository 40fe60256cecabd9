"""One callback that reports a whole run, in Python as on the command line."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from torch.utils.data import ConcatDataset, Subset

from fl_lightning.callbacks.hooks import FederationCallback, client_name
from fl_lightning.callbacks.orchestrator import FederatedOrchestrator
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.input_statistics import input_histograms, input_moments
from fl_lightning.data.labels import labels_at_hand, names_of
from fl_lightning.data.remote import RemoteDatasets
from fl_lightning.data.schema import categories_of, channel_names, schema_of
from fl_lightning.errors import ConfigurationError, require_counts
from fl_lightning.functional.exact_moments import Moments, together
from fl_lightning.functional.histograms import Cuts, cuts_of, shown_counts, without_few
from fl_lightning.functional.small_counts import without_small
from fl_lightning.reporting.client_charts import log_client_charts
from fl_lightning.reporting.features import FeatureSummary, draw_features
from fl_lightning.reporting.partition import PartitionSummary, draw_partition
from fl_lightning.reporting.rounds import MOST_COLUMNS, client_figures
from fl_lightning.reporting.summary import final_summary, run_settings
from fl_lightning.reporting.tables import log_table
from fl_lightning.reporting.wandb import FederationWandbLogger, describe_run, require_space, where_to_look
from fl_lightning.types import ClientFailure, ClientUpdate
from fl_lightning.utilities.atomic_file import write_whole
from fl_lightning.utilities.csv_file import read_rows, write_csv, write_rows

CLIENTS = ("client", "rounds", "examples", "steps", "last loss", "last score", "mean share", "seconds", "MB down", "MB up")
"""The columns of ``clients.csv``."""
_SUMS = {"steps": 1, "share": 1, "seconds": 1, "bytes_down": 1e6, "bytes_up": 1e6}
"""The columns of ``client_rounds.csv`` that it sums up, with their units."""
_FAILURES = ("round", "client", "attempts", "cause")
_MOST_ROWS = 100_000
"""The largest number of rows of ``client_rounds`` in W&B."""
_MOST_CLASSES = 1_000
"""Largest whole number that counts as a class; labels above it are treated as other values."""


class FederationReport(FederationCallback):
    """Report a run: what each client holds, what it did, which clients failed, and at the end the results and all files.

    Before training, a table on the terminal, ``partition.csv``, ``partition.png`` and W&B show each client's examples, by class
    if the partitioner has read the labels, or if the dataset provides them without reading every example.

    ``client_rounds.csv`` has a row for every client and round, with every value that the log could contain as a column, and
    ``clients.csv`` sums up its rows: rounds, training examples, optimizer steps, loss and score (if the strategy needs one) of
    the last round, mean share p_k / sum p_k, seconds of training, and megabytes received and sent. Cells without a value are
    empty. W&B gets both at the end (the last 100,000 rows); with :class:`~fl_lightning.FederationWandbLogger` also a chart for
    each figure, with a line for each client: after rounds 1, 2, 4, 8 and so on, and at the end. ``failures.csv`` has round,
    client, attempts and cause of each failure. A resumed run first removes the rows of the rounds that it repeats.

    A W&B run gets the settings as its configuration. A fit ends with lines that give the results and the location of every
    file; for an offline W&B run they include the command that uploads it.

    Args:
        partition: whether a fit shows each client's data; ``fl-lightning partition`` always does. The picture needs matplotlib.
        clients: whether a fit writes the tables of clients.
        features: whether to read the inputs, too, and show the mean, deviation and missing share of each feature, and the
            client that differs most: a table on the terminal and ``features.csv``; and how many examples of a table are in
            each bin, in ``histograms.csv`` and ``features.png``. ``fl-lightning describe`` always does.
        max_clients: largest number of rows of a table on the terminal, >= 1; the files contain all.
        min_count: the fewest examples in a bin that is told, >= 1; smaller counts are left out, and those from which they would
            follow. Sites have a limit of their own.
    """

    def __init__(
        self, partition: bool = True, clients: bool = True, features: bool = False, max_clients: int = 20, min_count: int = 10
    ) -> None:
        require_counts("federation_report.", max_clients=max_clients, min_count=min_count)
        self.partition, self.clients, self.features = partition, clients, features
        self.max_clients, self.min_count = max_clients, min_count
        self._summary: PartitionSummary | None = None
        self._begins = True

    @property
    def reads_inputs(self) -> bool:
        """Return whether a fit shows what the features are like, so that sites are asked for it."""
        return self.partition and self.features

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let charts of W&B show what the tables of clients have.

        Raises:
            ConfigurationError: if the Trainer has a second report.
        """
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        if sum(isinstance(callback, FederationReport) for callback in callbacks) > 1:
            raise ConfigurationError("The Trainer has two FederationReports, which would write every row twice. Remove one.")
        for logger in trainer.loggers:
            if isinstance(logger, FederationWandbLogger):
                logger.charts = self.clients

    # ---------------------------------------------------------------- before training

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the partition, on the first rank."""
        self._begins = True
        data = getattr(trainer, "datamodule", None)
        if self.partition and self._writes(trainer) and isinstance(data, FederatedDataModule):
            self._summary = self.show_partition(data, Path(trainer.default_root_dir))
            if self.features:
                self.show_features(data, Path(trainer.default_root_dir))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Send the partition to W&B, and the settings unless the command line does so, which knows every one."""
        summary, self._summary = self._summary, None
        if summary is not None and any(isinstance(logger, WandbLogger) for logger in trainer.loggers):
            path = Path(trainer.default_root_dir) / "partition.png"
            drawn = {"partition_picture": path.read_bytes()} if path.exists() else {}
            log_table(trainer, "partition", summary.columns, summary.rows, 0, **drawn)
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        owner = _orchestrator(trainer)
        if not trainer.is_global_zero or owner is None or any(getattr(c, "describes_runs", False) for c in callbacks):
            return
        data: Any = getattr(trainer, "datamodule", None)
        settings = run_settings(owner.settings, data)
        for logger in trainer.loggers:
            describe_run(logger, settings, str(getattr(data, "origin", "")))

    def show_partition(self, data: FederatedDataModule, folder: Path | None) -> PartitionSummary:
        """Print the table of each client's data, and write the files into a folder.

        Args:
            data: a datamodule after ``setup('fit')``.
            folder: folder of the run; None writes no files.
        """
        summary = summarize(data)
        print(summary.text(self.max_clients))
        if folder is None:
            return summary
        summary.write(folder / "partition.csv")
        drawn = draw_partition(summary, folder / "partition.png")
        more = ", partition.png" if drawn else " (a picture needs matplotlib: pip install 'fl_lightning[plots]')"
        print(f"Partition: {folder} (partition.csv{more})")
        return summary

    def show_features(self, data: FederatedDataModule, folder: Path | None) -> None:
        """Print what the features are like at the clients, and write the files into a folder.

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
        summary.write(folder / "features.csv")
        files = "features.csv"
        if any(counts for own in summary.bins for counts in own):
            summary.write_bins(folder / "histograms.csv")
            files += ", histograms.csv" + (", features.png" if draw_features(summary, folder / "features.png") else "")
        print(f"Features: {folder} ({files})")

    # ---------------------------------------------------------------- rounds

    def on_round_start(self, trainer: Trainer, pl_module: LightningModule, round_idx: int, cohort: tuple[int, ...]) -> None:
        """Remove this round and later ones from the files, before the first round of a fit."""
        if self._begins and self._writes(trainer):
            for name in ["failures.csv"] + ["client_rounds.csv"] * self.clients:
                forget_rounds(Path(trainer.default_root_dir) / name, round_idx)
        self._begins = False

    def on_client_failed(self, trainer: Trainer, pl_module: LightningModule, failure: ClientFailure) -> None:
        """Add the row of a failure."""
        if self._writes(trainer):
            row = [failure.round_idx, client_name(trainer, failure.client), failure.attempts, failure.cause]
            append_rows(Path(trainer.default_root_dir) / "failures.csv", _FAILURES, [row])

    def on_aggregated(self, trainer: Trainer, pl_module: LightningModule, updates: list[ClientUpdate]) -> None:
        """Add the rows of a round."""
        if self.clients and self._writes(trainer):
            _write_round(trainer, updates)
            number = trainer.current_epoch + 1
            if number & (number - 1) == 0:  # a power of two: all tables together are then twice as long as the last
                _draw(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the tables, on the first rank."""
        path = _rounds_of(trainer)
        if self._begins or not self.clients or not self._writes(trainer) or not path.exists():
            return
        rows = list(_clients(trainer, path))
        write_csv(path.with_name("clients.csv"), CLIENTS, rows)
        last = max(0, trainer.current_epoch - 1)
        log_table(trainer, "clients", CLIENTS, rows, last)
        header, rows = _draw(trainer)
        if rows:
            log_table(trainer, "client_rounds", header, rows[-_MOST_ROWS:], last)

    def _writes(self, trainer: Trainer) -> bool:
        return trainer.is_global_zero and not trainer.fast_dev_run  # type: ignore[attr-defined]

    # ---------------------------------------------------------------- the end

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Print the results and where the files are, on the first rank."""
        if not trainer.is_global_zero or stage not in ("fit", "test"):
            return
        if stage == "fit":
            owner = _orchestrator(trainer)
            print("\n".join(final_summary(trainer, federated=owner is not None and owner.enabled)))
            if owner is None:
                print("No federation was trained: the callbacks lack a FederatedOrchestrator.")
        if self._writes(trainer):
            for line in filter(None, map(where_to_look, trainer.loggers)):
                print(line)
            for logger in trainer.loggers:
                require_space(logger)


def _orchestrator(trainer: Trainer) -> FederatedOrchestrator | None:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return next((callback for callback in callbacks if isinstance(callback, FederatedOrchestrator)), None)


# ---------------------------------------------------------------- tables of rounds


def forget_rounds(path: Path, first: int) -> None:
    """Remove the rounds from ``first`` on from a file, if it exists: a resumed run repeats them.

    Args:
        path: CSV file whose first column is the round.
        first: first round to remove, from 0.
    """
    header, *rows = read_rows(path)
    kept = [row for row in rows if row[0].isdigit() and int(row[0]) < first]
    if not kept:  # the new rows may have other columns
        path.unlink(missing_ok=True)
        return
    text = io.StringIO(newline="")
    write_rows(text, [header, *kept])
    write_whole(path, text.getvalue().encode())


def append_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Append rows to a file, with a header if the file is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        write_rows(file, [columns, *rows] if new else rows)


def _rounds_of(trainer: Trainer) -> Path:
    return Path(trainer.default_root_dir) / "client_rounds.csv"


def _write_round(trainer: Trainer, updates: Sequence[ClientUpdate]) -> None:
    """Append the rows of a round to the file; the first round decides the columns."""
    path = _rounds_of(trainer)
    figures = [client_figures(update) for update in updates]
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            columns = next(csv.reader(file))
    else:
        logged = {name for update in updates for name in update.metrics}
        names = {name: None for own in figures for name in own}
        columns = ["round", "client", *(n for n in names if n not in logged), *sorted(logged & names.keys())]
    rows = [
        [update.round_idx, client_name(trainer, update.client), *(own.get(name, "") for name in columns[2:])]
        for update, own in zip(updates, figures, strict=True)
    ]
    append_rows(path, columns, rows)


def _clients(trainer: Trainer, path: Path) -> Iterator[list[Any]]:
    """Yield the rows of ``clients.csv``, in the order of clients, without holding those of all rounds."""
    sums: dict[str, dict[str, float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            own = sums.setdefault(line["client"], dict.fromkeys(("rounds", *_SUMS), 0.0))
            last = {name: float(line.get(name) or "nan") for name in ("examples", "loss", "score")}
            added = {name: own[name] + float(line.get(name) or "nan") / unit for name, unit in _SUMS.items()}
            own |= {**last, **added, "rounds": own["rounds"] + 1}
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    order = {data.client_name(client): client for client in range(data.num_clients)}
    for name in sorted(sums, key=lambda name: order.get(name, len(order))):
        own = sums[name]
        counts = [int(own[count]) for count in ("rounds", "examples", "steps")]
        figures = [own["loss"], own["score"], own["share"] / own["rounds"], own["seconds"], own["bytes_down"], own["bytes_up"]]
        yield [name, *counts, *(None if math.isnan(x) else x for x in figures)]


def _draw(trainer: Trainer) -> tuple[list[str], list[list[Any]]]:
    """Send the charts of all rounds so far, also of those before a resume, and return the header and the rows of the file."""
    if not any(isinstance(logger, WandbLogger) for logger in trainer.loggers):
        return [], []
    header, *lines = read_rows(_rounds_of(trainer))
    rows = [[int(line[0]), line[1], *(float(cell) if cell else None for cell in line[2:])] for line in lines]
    by_client = trainer.datamodule.num_clients <= MOST_COLUMNS  # type: ignore[attr-defined]
    log_client_charts(trainer, header, rows, by_client=by_client)
    return header, rows


# ---------------------------------------------------------------- what clients hold


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
