"""Tell what the clients of a federation hold: the half of :class:`~fl_lightning.FederatedDataModule` that is about clients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from lightning.pytorch import LightningDataModule
from torch import Tensor

from fl_lightning.data.changes import ExampleChange
from fl_lightning.data.client_source import ClientSource
from fl_lightning.data.client_splits import ClientSplits
from fl_lightning.data.held_out import HeldOut
from fl_lightning.data.poisson_loader import Coins, PoissonBatches
from fl_lightning.data.remote import RemoteDatasets
from fl_lightning.data.schema import schema_of
from fl_lightning.errors import ConfigurationError, DataError
from fl_lightning.functional.exact_moments import Moments, inputs_of, moments_of_batches
from fl_lightning.functional.histograms import Cuts, histograms_of
from fl_lightning.functional.labels import client_label_counts
from fl_lightning.functional.noisy_moments import RandBelow, noisy_moments
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.showing import client_bars, settings_table, short_repr
from fl_lightning.messages import ClientInfo, Part

_MOST_CLASSES = 100
"""The largest number of classes that a notebook's bars show."""


class ClientHolder(LightningDataModule):
    """Hold the clients' examples, or know their sizes if the clients are elsewhere.

    Args:
        datamodule: the user's datamodule.
        client_validation: the share of its examples that every client holds back for its own validation.
        client_test: the same for its own test.
    """

    def __init__(self, datamodule: LightningDataModule, client_validation: float, client_test: float) -> None:
        super().__init__()
        self.datamodule = datamodule
        self.client_validation, self.client_test = client_validation, client_test
        self.held_out_clients: HeldOut = 0
        self._client_datasets: ClientSource | None = None

    def __repr__(self) -> str:
        return short_repr(self)

    def _repr_html_(self) -> str:
        """Return the settings, and after ``setup('fit')`` each client's examples, by class if their labels are in memory."""
        held: ClientSource | None = vars(self).get("_client_datasets")
        if held is None or not (self.is_remote or self.has_one_set):  # streams have no sizes
            return settings_table(self)
        own, labels = held.splits.training, held.labels
        counts = own.sizes[:, None]
        if labels is not None and labels.numel() and 0 <= int(labels.min()) <= int(labels.max()) < _MOST_CLASSES:
            counts = client_label_counts(own.owners(), labels[own.order], len(own), int(labels.max()) + 1)
        return settings_table(self) + client_bars(own.names, counts)

    @property
    def client_datasets(self) -> ClientSource:
        """Return the clients' data, after ``setup('fit')``."""
        assert self._client_datasets is not None
        return self._client_datasets

    @property
    def splits(self) -> ClientSplits:
        """Return the division of the examples over clients, after ``setup('fit')``."""
        return self.client_datasets.splits

    @property
    def indices(self) -> Partition:
        """Return the clients' training examples."""
        return self.splits.training

    @property
    def labels(self) -> Tensor | None:
        """Return the class of each example of the training set, int64, shape (n,), if labels have been read."""
        return None if self._client_datasets is None else self._client_datasets.labels

    @property
    def origin(self) -> str:
        """Return the origin of the data, in words."""
        if isinstance(self._client_datasets, RemoteDatasets):
            return f"{self.num_clients} sites, and {getattr(self.datamodule, 'origin', type(self.datamodule).__name__)} here"
        return str(getattr(self.datamodule, "origin", type(self.datamodule).__name__))

    @property
    def num_clients(self) -> int:
        """Return K, the number of clients that train, which is known after ``setup('fit')``."""
        return len(self.indices)

    @property
    def unseen(self) -> Partition | None:
        """Return the test examples of the held-out clients, whose ids are K and above; None without any."""
        return self.client_datasets.unseen

    def num_examples(self, client: int) -> int:
        """Return the number of training examples of one client, n_k; a public share does not count."""
        return self.indices[client].numel()

    def client_name(self, client: int) -> str:
        """Return the client's domain or the value of its column, if it has one, otherwise its number."""
        own, position = self.indices, client
        if self.unseen is not None and client >= len(own):
            own, position = self.unseen, client - len(own)
        return str(client) if own.names is None else own.names[position]

    def clients_hold(self, part: Literal["validation", "test"]) -> bool:
        """Return whether each client has a validation or test part: a share of its examples, or a set of its own."""
        return getattr(self.splits, part) is not None

    def register_clients(self, infos: Sequence[ClientInfo]) -> None:
        """Take what clients outside this process tell about themselves, in the order of their ids, held-out ones last."""
        held = self.held_out_clients
        self._client_datasets = RemoteDatasets(infos, len(held) if isinstance(held, list) else 0)

    @property
    def is_remote(self) -> bool:
        """Return whether the clients' examples are outside this process."""
        return isinstance(self._client_datasets, RemoteDatasets)

    @property
    def has_one_set(self) -> bool:
        """Return whether all clients' training examples are in one dataset here, of which each has indices."""
        return self._client_datasets is None or self._client_datasets.whole

    def label_counts(self) -> Tensor:
        """Count each client's training examples by class, by its own labels, int64, shape (K, C), after ``setup('fit')``.

        Raises:
            DataError: if the training set does not have labels.
        """
        return self.client_datasets.label_counts()

    def change_examples(self, changes: Mapping[int, ExampleChange]) -> None:
        """Change clients' examples from now on; see ``ClientDatasets.change_examples``."""
        self.client_datasets.change_examples(changes)

    def input_moments(self, client: int) -> Moments:
        """Return the exact sums of one client's training inputs, and of their squares, for each channel, as float32.

        Inputs are those of an evaluation: after the datamodule's hooks, which find no Trainer, so nothing is augmented. A
        datamodule with a method ``statistics(batches)`` adds them up itself. A client outside this process has told its sums.

        Raises:
            ConfigurationError: if such a client does not tell them.
            DataError: if the inputs cannot be measured.
        """
        if isinstance(self._client_datasets, RemoteDatasets):
            return self._client_datasets.input_moments(client)
        own = getattr(self.datamodule, "statistics", None)
        found = (own if callable(own) else moments_of_batches)(self._evaluated(client))
        if not isinstance(found, Moments):
            raise DataError(
                f"'statistics' of {type(self.datamodule).__name__} returned a {type(found).__name__}. Return what "
                "'fl_lightning.functional.exact_moments.together' or 'moments_of' returns."
            )
        return found

    def noisy_moments(self, client: int, epsilon: float, draw: RandBelow) -> Moments:
        """Return the sums of one client's training inputs with noise; see :func:`~fl_lightning.functional.noisy_moments`.

        Args:
            client: the client's id, from 0.
            epsilon: the privacy loss of a row that is replaced.
            draw: draws the noise.

        Raises:
            ConfigurationError: if the inputs are not the features of a schema, which bounds them.
        """
        schema, first = schema_of(self.datamodule), next(self._evaluated(client))
        inputs = inputs_of(first)
        if schema is None or inputs.dim() != 2 or inputs.shape[1] != len(schema.feature_names):
            raise ConfigurationError(
                "Sums with noise need a schema, whose ranges bound the values. Set 'schema' of a TableDataModule, or leave out "
                "'epsilon' of Standardized and 'policy.statistics_epsilon'."
            )
        return noisy_moments(self._evaluated(client), schema.bounded, inputs.shape[1], epsilon, draw)

    def input_histograms(self, client: int, cuts: Cuts) -> list[list[int]]:
        """Return how many of one client's training examples are in each bin, for each column; none for other inputs.

        Args:
            client: the client's id, from 0.
            cuts: the borders between the bins of each column.
        """
        if callable(getattr(self.datamodule, "statistics", None)):
            return [[] for _ in cuts]
        return histograms_of(self._evaluated(client), cuts)

    def _evaluated(self, client: int) -> Iterator[Any]:
        """Yield the batches of one client's training examples as a module gets them in an evaluation.

        Raises:
            DataError: if the client trains on a stream.
        """
        if self.client_datasets.size_is_unknown(client):
            raise DataError(
                f"Client {self.client_name(client)} trains on a stream, whose inputs cannot be measured before training. Leave "
                "out Standardized, and scale by public numbers; or give the client a dataset with a length."
            )
        view, outer = self.client_evaluation_view(client, "training"), self.datamodule.trainer
        self.datamodule.trainer = None  # a simulation must get what a site gets, whatever its Trainer's precision
        try:
            for batch in view.val_dataloader():
                yield view.on_after_batch_transfer(view.on_before_batch_transfer(batch, 0), 0)
        finally:
            self.datamodule.trainer = outer

    @abstractmethod
    def client_evaluation_view(self, client: int, part: Part) -> LightningDataModule:
        """Return a part of one client's examples as a validation set."""

    def evaluated_persons(self, client: int, part: Part) -> Tensor | None:
        """Return the person of each example of a part of one client's, in order, int64; None if the data name no persons."""
        return self.client_datasets.persons_of(client, part)

    @property
    def sharing(self) -> Sequence[tuple[int, ...]]:
        """Return the groups of clients that train on examples of the same person; none of sites, which cannot know it."""
        return self.client_datasets.sharing

    def poisson_batches(self, client: int, full_batch: bool, coins: Coins) -> PoissonBatches:
        """Return one client's batches of Poisson sampling; see ``ClientDatasets.poisson_batches``."""
        return self.client_datasets.poisson_batches(client, full_batch, coins)
