"""Any LightningDataModule, spread over clients."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader

from fl_lightning.data.labels import read_labels
from fl_lightning.data.loaders import client_loader, sharded, training_loader
from fl_lightning.data.rounds import RoundLoader, unless_round
from fl_lightning.errors import DataError
from fl_lightning.partitioners.base import Partitioner

_TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class _View(LightningDataModule):
    """Presents loaders to an inner Trainer, with the batch-transfer hooks of the user's datamodule."""

    def __init__(self, base: LightningDataModule) -> None:
        super().__init__()
        self._base = base
        for hook in _TRANSFER_HOOKS:
            if is_overridden(hook, base, LightningDataModule):
                vars(self)[hook] = getattr(base, hook)

    def __getattr__(self, name: str) -> Any:
        """What a module reads from ``self.trainer.datamodule`` is the user's."""
        return _from_base(self, "_base", name)

    def setup(self, stage: str) -> None:
        """The user's hooks see the Trainer that runs: the inner one."""
        self._outer_trainer, self._base.trainer = self._base.trainer, self.trainer

    def teardown(self, stage: str) -> None:
        """Hand the outer Trainer back."""
        self._base.trainer = self._outer_trainer


class _ClientView(_View):
    def __init__(self, base: LightningDataModule, loader: Any) -> None:
        super().__init__(base)
        self._loader = loader

    def train_dataloader(self) -> Any:
        """One client's examples."""
        return self._loader


class _ServerView(_View):
    def val_dataloader(self) -> Any:
        """The server's whole validation set."""
        return self._base.val_dataloader()


class FederatedDataModule(LightningDataModule):
    """Spreads the training set of a datamodule over clients; validation, test and prediction stay with the server.

    With a :class:`~fl_lightning.FederatedOrchestrator` in the Trainer it serves rounds; without one it serves the
    union of the clients' examples, which is the centralized baseline. On several ranks the server's sets are split
    without padding, so that no example counts twice.

    Args:
        datamodule: any datamodule whose ``train_dataloader`` gives one DataLoader over a map-style dataset. Batch size,
            shuffling, collation and workers of the clients are those of that loader.
        partitioner: decides which example belongs to which client.
    """

    def __init__(self, datamodule: LightningDataModule, partitioner: Partitioner) -> None:
        super().__init__()
        self.datamodule = datamodule
        self.partitioner = partitioner
        self.indices: list[Tensor] = []
        self.labels: Tensor | None = None
        self._serves_rounds = False
        self._source: DataLoader[Any] | None = None
        self.prepare_data_per_node = datamodule.prepare_data_per_node
        for loader in ("val_dataloader", "test_dataloader", "predict_dataloader"):
            if not is_overridden(loader, datamodule, LightningDataModule):
                vars(self)[loader] = getattr(super(), loader)  # Lightning, too, sees that there is none
        for hook in _TRANSFER_HOOKS:
            if is_overridden(hook, datamodule, LightningDataModule):
                vars(self)[hook] = unless_round(getattr(datamodule, hook))

    def __getattr__(self, name: str) -> Any:
        """Attributes of the user's datamodule, which a module may read from ``self.trainer.datamodule``."""
        return _from_base(self, "datamodule", name)

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
            self.labels = read_labels(dataset)
            if getattr(self.datamodule, "is_stand_in", False):
                partitioner = partitioner.for_stand_in(self.labels)
        self.indices = partitioner.partition(len(dataset), self.labels)
        empty = [k for k, indices in enumerate(self.indices) if not indices.numel()]
        if empty or not self.indices:
            raise DataError(
                f"{type(partitioner).__name__} left {'client ' + str(empty[0]) if empty else 'every client'} without data. "
                "Every client needs at least one training example: use fewer clients or another partition."
            )

    def client(self, client: int, seed: int) -> LightningDataModule:
        """The data of one client for an inner Trainer; ``seed`` fixes the order of its examples."""
        assert self._source is not None
        loader = client_loader(self._source, self.indices[client], torch.Generator().manual_seed(seed))
        return _ClientView(self.datamodule, loader)

    def server_view(self) -> LightningDataModule:
        """The whole validation set for an inner Trainer, not split over ranks."""
        return _ServerView(self.datamodule)

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


def _from_base(view: LightningDataModule, base: str, name: str) -> Any:
    if base not in vars(view) or name.startswith("__"):
        raise AttributeError(f"'{type(view).__name__}' object has no attribute '{name}'")
    return getattr(vars(view)[base], name)
