"""Any LightningDataModule, spread over clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader

from fl_lightning.data.client_dataset import altered_dataset
from fl_lightning.data.labels import read_labels
from fl_lightning.data.loaders import client_loader, evaluation_loader, hold_out, sharded, training_loader
from fl_lightning.data.rebalancing import LabelAveraging
from fl_lightning.data.rounds import RoundLoader, unless_round
from fl_lightning.data.views import TRANSFER_HOOKS, EvaluationView, ServerView, TrainingView, from_base
from fl_lightning.errors import DataError, require
from fl_lightning.functional.labels import label_counts, wrong_labels
from fl_lightning.functional.seeding import generator
from fl_lightning.partitioners.base import Partitioner


class FederatedDataModule(LightningDataModule):
    """Spreads the training set of a datamodule over clients; validation, test and prediction stay with the server.

    With a :class:`~fl_lightning.FederatedOrchestrator` in the Trainer it serves rounds; without one it serves the
    union of the clients' examples, which is the centralized baseline. On several ranks the server's sets are split
    without padding, so that no example counts twice.

    Args:
        datamodule: any datamodule whose ``train_dataloader`` gives one DataLoader over a map-style dataset. Batch size,
            shuffling, collation and workers of the clients are those of that loader.
        partitioner: decides which example belongs to which client.
        client_validation: share of its examples, in [0, 1), that every client holds back from training for a validation
            of its own, at least one; FedLoss takes 0.1. The same for the same seed of the partitioner.
        rebalancing: clients repeat examples of rare classes; none do by default.

    Raises:
        ConfigurationError: for a share outside [0, 1).
    """

    def __init__(
        self,
        datamodule: LightningDataModule,
        partitioner: Partitioner,
        client_validation: float = 0.0,
        rebalancing: LabelAveraging | None = None,
    ) -> None:
        super().__init__()
        require(0 <= client_validation < 1, "data.client_validation", "at least 0 and below 1", client_validation)
        self.datamodule = datamodule
        self.partitioner = partitioner
        self.client_validation = client_validation
        self.rebalancing = rebalancing
        self.indices: list[Tensor] = []
        self.validation_indices: list[Tensor] = []
        self.labels: Tensor | None = None
        self._wrong: dict[int, float] = {}
        self._wrong_seed = 0
        self._serves_rounds = False
        self._source: DataLoader[Any] | None = None
        self._label_counts: Tensor | None = None
        self._large_batch: int | None = None
        self.prepare_data_per_node = datamodule.prepare_data_per_node
        for loader in ("val_dataloader", "test_dataloader", "predict_dataloader"):
            if not is_overridden(loader, datamodule, LightningDataModule):
                vars(self)[loader] = getattr(super(), loader)  # Lightning, too, sees that there is none
        for hook in TRANSFER_HOOKS:
            if is_overridden(hook, datamodule, LightningDataModule):
                vars(self)[hook] = unless_round(getattr(datamodule, hook))

    def __getattr__(self, name: str) -> Any:
        """Attributes of the user's datamodule, which a module may read from ``self.trainer.datamodule``."""
        return from_base(self, "datamodule", name)

    @property
    def origin(self) -> str:
        """Where the data came from, in words."""
        return str(getattr(self.datamodule, "origin", type(self.datamodule).__name__))

    @property
    def num_clients(self) -> int:
        """K, known after ``setup('fit')``."""
        return len(self.indices)

    def num_examples(self, client: int) -> int:
        """Training examples of one client, n_k."""
        return self.indices[client].numel()

    @property
    def has_validation_set(self) -> bool:
        """Whether the user's datamodule gives validation data."""
        return is_overridden("val_dataloader", self.datamodule, LightningDataModule)

    def serve_rounds(self, active: bool) -> None:
        """Whether ``train_dataloader`` gives rounds (the orchestrator says so) or the clients' examples."""
        self._serves_rounds = active

    def prepare_data(self) -> None:
        """Let the user's datamodule download."""
        self.datamodule.prepare_data()

    def setup(self, stage: str) -> None:
        """Set up the user's datamodule and, for ``fit``, divide its training set.

        Raises:
            DataError: if the training set cannot be divided, or a client would have no data.
        """
        self.datamodule.trainer = self.trainer
        self.datamodule.setup(stage)
        if stage == "fit":
            self._source = training_loader(self.datamodule)
            if not self.indices:
                self._partition(self._source.dataset)

    def _partition(self, dataset: Any) -> None:
        partitioner = self.partitioner
        if partitioner.needs_labels:
            labels = self._all_labels()
            if getattr(self.datamodule, "is_stand_in", False):
                partitioner = partitioner.for_stand_in(labels)
        self.indices = partitioner.partition(len(dataset), self.labels)
        empty = [k for k, indices in enumerate(self.indices) if not indices.numel()]
        if empty or not self.indices:
            raise DataError(
                f"{type(partitioner).__name__} left {'client ' + str(empty[0]) if empty else 'every client'} without data. "
                "Every client needs at least one training example: use fewer clients or another partition."
            )
        if self.client_validation:
            seed = int(getattr(partitioner, "seed", 0))
            parts = [hold_out(own, self.client_validation, k, seed) for k, own in enumerate(self.indices)]
            self.indices = [training for training, _ in parts]
            self.validation_indices = [validation for _, validation in parts]

    def _all_labels(self) -> Tensor:
        if self.labels is None:
            assert self._source is not None
            self.labels = read_labels(self._source.dataset)
        return self.labels

    def _num_classes(self) -> int:
        classes = int(self._all_labels().max()) + 1
        if classes < 2:
            raise DataError("The training data hold a single class: no label can be wrong, and none is rare.")
        return classes

    def label_counts(self) -> Tensor:
        """Training examples of each class that each client believes to hold, int64, shape (K, C), after ``setup('fit')``.

        Raises:
            DataError: if the training set has no labels.
        """
        if self._label_counts is None:
            held = [self._believed(k, own) for k, own in enumerate(self.indices)]
            true = self._all_labels()
            labels = [true[own] if other is None else other for own, other in zip(self.indices, held, strict=True)]
            self._label_counts = label_counts(labels, self._num_classes())
        return self._label_counts

    def mislabel(self, shares: Mapping[int, float], seed: int) -> None:
        """Give clients wrong labels from now on, in training and validation parts alike.

        Args:
            shares: of the labels of a client that are wrong, by client, in [0, 1].
            seed: decides which, once for all rounds.
        """
        self._wrong, self._wrong_seed, self._label_counts = dict(shares), seed, None

    def _believed(self, client: int, indices: Tensor) -> Tensor | None:
        """The labels as the client has them; None where they are the true ones."""
        if not self._wrong.get(client):
            return None
        labels = self._all_labels()[indices]
        part = "validation" if indices is not self.indices[client] else "training"
        draw = generator(self._wrong_seed, client, "wrong labels", part)
        return wrong_labels(labels, self._wrong[client], self._num_classes(), draw)

    def client(self, client: int, seed: int, full_batch: bool = False) -> LightningDataModule:
        """The data of one client for an inner Trainer.

        Args:
            client: its id.
            seed: fixes the order of its examples, and which of them are repeated.
            full_batch: all examples in one batch.
        """
        assert self._source is not None
        indices, dataset = self.indices[client], None
        believed, repeated = self._believed(client, indices), None
        if self.rebalancing is not None:
            labels = self._all_labels()[indices] if believed is None else believed
            repeated = self.rebalancing.repeated(labels, self.label_counts(), seed)
        if believed is not None or repeated is not None:
            true = self._all_labels()[indices]
            dataset = altered_dataset(self._source.dataset, indices, true, believed, repeated, self.rebalancing)
            indices = torch.arange(len(dataset))  # type: ignore[arg-type]
        size = indices.numel() if full_batch else None
        loader = client_loader(self._source, indices, torch.Generator().manual_seed(seed), dataset=dataset, batch_size=size)
        return TrainingView(self.datamodule, loader)

    def client_evaluation_view(self, client: int, part: Literal["training", "validation"]) -> LightningDataModule:
        """A part of one client's examples as a validation set, in order and in large batches, for an inner Trainer."""
        assert self._source is not None
        indices = (self.indices if part == "training" else self.validation_indices)[client]
        dataset, believed = self._source.dataset, self._believed(client, indices)
        if believed is not None:
            dataset = altered_dataset(dataset, indices, self._all_labels()[indices], believed, None, None)
            indices = torch.arange(len(indices))
        loader = evaluation_loader(self._source, dataset, indices, self._evaluation_batch_size())
        return EvaluationView(self.datamodule, loader)

    def _evaluation_batch_size(self) -> int:
        """The server's, where its validation loader says so."""
        if self._large_batch is None:
            loaders = self.datamodule.val_dataloader() if self.has_validation_set else None
            assert self._source is not None
            own = self._source.batch_size or 1
            self._large_batch = max(own, int(getattr(loaders, "batch_size", None) or own))
        return self._large_batch

    def server_view(self) -> LightningDataModule:
        """The whole validation set for an inner Trainer, not split over ranks."""
        return ServerView(self.datamodule)

    def train_dataloader(self) -> Any:
        """One round per epoch, or without a federation the union of the clients' examples."""
        if self._serves_rounds:
            return RoundLoader()
        assert self._source is not None
        union = torch.cat(self.indices).sort().values
        return client_loader(self._source, union, None, in_memory=self._world_size == 1)

    def val_dataloader(self) -> Any:
        """The server's validation set, split over the ranks without padding."""
        return sharded(self.datamodule.val_dataloader(), *self._rank)

    def test_dataloader(self) -> Any:
        """The server's test set, split over the ranks without padding."""
        return sharded(self.datamodule.test_dataloader(), *self._rank)

    def predict_dataloader(self) -> Any:
        """The user's prediction set, split over the ranks without padding."""
        return sharded(self.datamodule.predict_dataloader(), *self._rank)

    def teardown(self, stage: str) -> None:
        """Let the user's datamodule clean up."""
        self.datamodule.teardown(stage)

    def on_exception(self, exception: BaseException) -> None:
        """Let the user's datamodule clean up after an error."""
        self.datamodule.on_exception(exception)

    def state_dict(self) -> dict[str, Any]:
        """The state of the user's datamodule."""
        return self.datamodule.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give the user's datamodule its state back."""
        self.datamodule.load_state_dict(state_dict)

    @property
    def _world_size(self) -> int:
        return self.trainer.world_size if self.trainer else 1

    @property
    def _rank(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
