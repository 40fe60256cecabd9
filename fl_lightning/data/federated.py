"""Distribute any LightningDataModule over clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader

from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.data.changes import FeatureNoise, LabelAveraging
from fl_lightning.data.class_names import require_alike
from fl_lightning.data.client_datasets import ClientDatasets
from fl_lightning.data.client_holder import ClientHolder
from fl_lightning.data.client_part import ClientPart
from fl_lightning.data.client_sets import ClientSets, OwnSets
from fl_lightning.data.client_source import ClientSource
from fl_lightning.data.client_sources import OTHER_PACKAGE
from fl_lightning.data.client_splits import check_shares, divide, splitter
from fl_lightning.data.given_data import data_and_partitioner, missing
from fl_lightning.data.given_loaders import GivenLoaders
from fl_lightning.data.held_out import HeldOut, check_held_out, chosen, held_out_last
from fl_lightning.data.labels import labels_at_hand, read_labels, read_persons
from fl_lightning.data.lazy_clients import LazyClients, LazyDatasets, OpenedClients
from fl_lightning.data.loaders import client_loader, reduced, sharded, training_loader
from fl_lightning.data.poisson_loader import PoissonBatches
from fl_lightning.data.readers import Readers
from fl_lightning.data.remote import clients_elsewhere
from fl_lightning.data.rounds import RoundLoader, unless_round
from fl_lightning.data.samplers import is_plain, yields
from fl_lightning.data.views import TRANSFER_HOOKS, EvaluationView, ServerView, TrainingView, from_base, leave_out
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.messages import Part
from fl_lightning.partitioners.base import Partitioner
from fl_lightning.utilities.checkpoint_file import LoadsSafely


class FederatedDataModule(LoadsSafely, ClientHolder):
    """Distribute the training set of a datamodule over clients; validation, test and prediction stay with the server.

    With a :class:`~fl_lightning.FederatedOrchestrator` in the Trainer it serves rounds. Without one it serves the union of the
    clients' examples, which is the centralized baseline. On several ranks the server's sets are split without padding, so
    that no example counts twice. The same seed of the partitioner gives the same parts and shares.

    Args:
        datamodule: any datamodule whose ``train_dataloader`` returns one DataLoader over a map-style dataset. The clients use
            that loader's batch size, sampler, collation and workers.
        partitioner: decides which example belongs to which client; None if the clients are sites of their own
            (``federation.pool``).
        client_validation: the share of its examples, in [0, 1), that every client holds back from training for its own
            validation, at least one, in the proportions of its classes if the dataset provides labels; FedLoss uses 0.1.
        client_test: the same for its own test; the papers use 0.2. Both shares together must be below 1.
        server_set: the server's validation and test data: the ``datamodule``'s own sets, or the union of the test parts
            of the ``clients``, which needs ``client_test`` above 0.
        public_share: the share of the training set, in [0, 1), with equally many examples of each class, that is set aside and
            added to every client's training examples (data sharing; survey, section III-C). It does not count in the
            number of examples by which a client is weighed.
        feature_noise: sigma >= 0: client i of N has Gaussian noise of variance sigma * i / N on its inputs, in all its
            parts (feature skew; FedLoss thesis, 3.2). Images are first scaled to [0, 1]. N are the clients that train; a
            held-out client has the noise of its place among all.
        rebalancing: makes clients repeat examples of rare classes; off by default.
        memory_limit: the GPU memory in GiB that the training set's tensors may take, so that batches are indexed there. The
            default is half of the free memory; 0 keeps them in the CPU's memory.
        clients: instead of ``datamodule`` and ``partitioner``, a datamodule for each client by name, whose training loader has
            the client's examples, and whose validation and test loaders, if any, serve the client's own sets; see
            :meth:`from_clients`.
        held_out_clients: the clients that never train, on which ``federation.client_evaluation`` tests the global model: a
            share in [0, 1), a number, or a list of names, which sites over a network need. A share and a number are drawn with
            the partitioner's seed. They are tested on their test parts; without ``client_test``, on all of their examples.

    Raises:
        ConfigurationError: if a value is outside its range, or if the data or the partitioner is missing.

    Example:
        >>> from lightning.pytorch.demos.boring_classes import BoringDataModule
        >>> from fl_lightning import FederatedDataModule, IIDPartitioner
        >>> data = FederatedDataModule(BoringDataModule(), IIDPartitioner(num_clients=4), client_test=0.25)
        >>> data.setup("fit")
        >>> data.num_clients, data.num_examples(0)
        (4, 12)
    """

    checked_elsewhere = ("datamodule",)
    on_resume = ResumeRule(
        stays="held_out_clients", free="partitioner client_validation client_test public_share memory_limit clients"
    )

    def __init__(
        self,
        datamodule: LightningDataModule | None = None,
        partitioner: Partitioner | None = None,
        client_validation: float = 0.0,
        client_test: float = 0.0,
        server_set: Literal["datamodule", "clients"] = "datamodule",
        public_share: float = 0.0,
        feature_noise: float = 0.0,
        rebalancing: LabelAveraging | None = None,
        memory_limit: float | None = None,
        clients: dict[str, LightningDataModule] | None = None,
        held_out_clients: HeldOut = 0,
    ) -> None:
        datamodule, partitioner = data_and_partitioner(datamodule, partitioner, clients)
        super().__init__(datamodule, client_validation, client_test)
        self.clients, self.partitioner = clients, partitioner
        check_shares(client_validation, client_test, public_share)
        known = "'datamodule', or 'clients' with 'data.client_test' above 0"
        require(server_set == "datamodule" or client_test > 0, "data.server_set", known, server_set)
        require(feature_noise >= 0, "data.feature_noise", "0 or above", feature_noise)
        require(memory_limit is None or memory_limit >= 0, "data.memory_limit", "0 or above, in GiB, or null", memory_limit)
        if isinstance(datamodule, ClientSets | LazyClients):
            require(public_share == 0, "data.public_share", "0 if each client has a dataset of its own", public_share)
        check_held_out(held_out_clients)
        if held_out_clients:
            known = "0 with held-out clients, whose examples it would contain"
            require(public_share == 0, "data.public_share", known, public_share)
            scales = not isinstance(datamodule, ClientSets) and bool(getattr(datamodule, "standardize", False))
            known = "false with held-out clients, whose rows it would read; let the model scale: Standardized"
            require(not scales, "data.datamodule.standardize", known, scales)
        self.held_out_clients = held_out_clients
        if held_out_clients and isinstance(datamodule, ClientSets):
            datamodule.held_out = chosen(held_out_clients, datamodule.names, seed=0)
        self.server_set, self.memory_limit = server_set, memory_limit
        self.public_share, self.feature_noise, self.rebalancing = public_share, feature_noise, rebalancing
        self._serves_rounds, self._large_batch = False, 0
        self._device: torch.device | None = None
        self.prepare_data_per_node = datamodule.prepare_data_per_node
        for loader in ("val_dataloader", "test_dataloader", "predict_dataloader"):
            served = server_set == "clients" and loader != "predict_dataloader"
            if not served and not is_overridden(loader, datamodule, LightningDataModule):
                leave_out(self, loader)
        for hook in TRANSFER_HOOKS:
            if is_overridden(hook, datamodule, LightningDataModule):
                vars(self)[hook] = unless_round(getattr(datamodule, hook))

    @classmethod
    def from_clients(
        cls,
        clients: Mapping[str, Any] | Callable[[int], Any],
        val: Any = None,
        test: Any = None,
        *,
        batch_size: int = 32,
        shuffle: bool = True,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_clients: int | None = None,
        num_examples: int | Sequence[int] | Tensor | None = None,
        **settings: Any,
    ) -> FederatedDataModule:
        """Return the data of clients that each have a dataset of their own.

        Clients are numbered in the order of their sorted names, which tables and messages show.

        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> sites = {name: TensorDataset(torch.randn(8, 2), torch.arange(8) % 2) for name in ("b", "a")}
        >>> data = FederatedDataModule.from_clients(sites, val=sites["a"], batch_size=4)
        >>> data.setup("fit")
        >>> data.num_clients, data.client_name(0)
        (2, 'a')

        Args:
            clients: each client's training examples by name: a dataset, a DataLoader, or a LightningDataModule, whose
                validation and test loaders are then the client's own sets. Loaders must have the same settings; but streams,
                samplers other than shuffling, samplers of batches and subclasses of DataLoader are used as they are.
                Or a function that returns the dataset of a client, by its number: it is called when the client is drawn.
            val: the server's validation set, a dataset or DataLoader; or each client's own by name, whose union is then the
                server's.
            test: the same for the test set.
            batch_size: the examples per batch, >= 1, for clients given as datasets.
            shuffle: whether they shuffle their training examples.
            num_workers: the worker processes that read them, >= 0.
            collate_fn: the function that makes a batch of examples; torch's by default.
            num_clients: the number of clients that a function opens.
            num_examples: how many training examples each of them has: one number for all, or one for each.
            settings: further arguments of :class:`FederatedDataModule`, such as ``client_test``.

        Raises:
            ConfigurationError: if a value is outside its range, or validation sets do not belong to the clients.
        """
        if callable(clients):
            require(num_workers == 0, "num_workers", "0 if clients are opened by a function", num_workers)
            own = OpenedClients(clients, num_clients, num_examples, val, test, batch_size, shuffle, collate_fn)
            return cls(own, **settings)
        counts, known = {"num_clients": num_clients, "num_examples": num_examples}, "left out if clients are given by name"
        for name, count in counts.items():
            require(count is None, name, known, count)
        sets = ClientSets(clients, val, test, batch_size, shuffle, num_workers, collate_fn)
        return cls(sets, OwnSets(sets), **settings)

    @classmethod
    def from_loaders(
        cls, train: Any, val: Any = None, test: Any = None, *, partitioner: Partitioner, **settings: Any
    ) -> FederatedDataModule:
        """Return data that a partitioner divides, from DataLoaders instead of a datamodule.

        Args:
            train: the training loader, a DataLoader over a map-style dataset.
            val: the server's validation loader.
            test: the server's test loader.
            partitioner: decides which example belongs to which client.
            settings: further arguments of :class:`FederatedDataModule`, such as ``client_test``.
        """
        return cls(GivenLoaders(train, val, test), partitioner, **settings)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; refuse a Trainer of the package ``pytorch_lightning``, which cannot read this datamodule."""
        if name == "trainer" and type(value).__module__.startswith("pytorch_lightning."):
            raise ConfigurationError(f"The Trainer is a pytorch_lightning.Trainer. {OTHER_PACKAGE}")
        if name == "batch_size" and hasattr(vars(self).get("datamodule"), name):  # a BatchSizeFinder without a federation
            setattr(self.datamodule, name, value)
            if self._client_datasets is not None and self.has_one_set:
                self.reload()
            return
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Return attributes of the user's datamodule, which a module may read from ``self.trainer.datamodule``."""
        return from_base(self, "datamodule", name)

    @property
    def has_validation_set(self) -> bool:
        """Return whether the server has validation data."""
        return self.server_set == "clients" or is_overridden("val_dataloader", self.datamodule, LightningDataModule)

    def serve_rounds(self, active: bool) -> None:
        """Set whether ``train_dataloader`` serves rounds, as the orchestrator requests, or the clients' examples."""
        self._serves_rounds = active

    # ---------------------------------------------------------------- set-up

    def prepare_data(self) -> None:
        """Let the user's datamodule download."""
        self.datamodule.prepare_data()

    def setup(self, stage: str) -> None:
        """Set up the user's datamodule, and divide its training set for ``fit`` or if the clients hold the server's set.

        Raises:
            DataError: if the training set cannot be divided, or a client would have no data.
        """
        self.datamodule.trainer = self.trainer
        self.datamodule.setup(stage)
        if stage != "fit" and self.server_set == "clients":
            self.datamodule.setup("fit")
        if clients_elsewhere(self.trainer):
            return  # :meth:`meet` tells their sizes
        if isinstance(self.datamodule, LazyClients):
            self._client_datasets = self._client_datasets or self._reading_alone(LazyDatasets(self.datamodule))
            return
        if self.partitioner is None:
            raise missing("partitioner")
        if isinstance(self.datamodule, ClientSets) and (own := self.datamodule.own_loaders()) is not None:
            self._client_datasets = self._client_datasets or self._reading_alone(own)
        elif stage == "fit" or self.server_set == "clients":
            source = training_loader(self.datamodule)
            if self._client_datasets is None:
                self._client_datasets = self._hold(source)
            self._client_datasets.source = source

    def _reading_alone(self, own: ClientSource) -> ClientSource:
        """Return clients that are read as they are, after refusing settings that would change their examples."""
        settings = ("client_validation", "client_test", "feature_noise", "held_out_clients")
        for name in (*settings, *(["rebalancing"] if self.rebalancing is not None else [])):
            how = "when they are drawn" if isinstance(own, LazyDatasets) else "with loaders of their own"
            require(not getattr(self, name), f"data.{name}", f"off if clients read {how}", getattr(self, name))
        return own

    def _hold(self, source: DataLoader[Any]) -> ClientDatasets:
        dataset: Any = source.dataset
        assert self.partitioner is not None
        partitioner, seed = self.partitioner, int(getattr(self.partitioner, "seed", 0))
        read = partitioner.needs_labels or self.public_share > 0
        labels = read_labels(dataset) if read else None
        if labels is not None and getattr(self.datamodule, "is_stand_in", False):
            partitioner = partitioner.for_stand_in(labels)

        shares = {"validation": self.client_validation, "test": self.client_test}
        among = None if is_plain(source.sampler) else yields(source)
        known = labels if labels is not None else labels_at_hand(dataset)
        division = divide(
            len(dataset),
            splitter(partitioner, dataset, labels),
            known,
            shares,
            self.public_share,
            seed,
            first=int(getattr(partitioner, "first", 0)),
            persons=self.datamodule.persons if isinstance(self.datamodule, ClientSets) else read_persons(dataset),
            among=among,
        )
        if isinstance(self.datamodule, ClientSets):
            division = self.datamodule.with_own_sets(division, shares)
        possible, readers, unseen, held = None if among is None else among.numel(), self._readers(), None, []
        if self.held_out_clients:
            names = division.training.names or tuple(map(str, range(len(division.training))))
            held = chosen(self.held_out_clients, names, seed)
            division, unseen, order = held_out_last(division, held)
            readers = readers.in_order(order)
        sigma = self.feature_noise
        noise = FeatureNoise(sigma, len(division.training), seed, tuple(held)) if sigma else None
        return ClientDatasets(division, source, known, noise, self.rebalancing, readers, possible, unseen)

    def _readers(self) -> Readers:
        """Return what reads each part of each client: the loaders of the datamodule, or each client's own."""
        if isinstance(self.datamodule, ClientSets):
            return self.datamodule.readers()
        has_own = is_overridden("val_dataloader", self.datamodule, LightningDataModule)
        return Readers(self.datamodule.val_dataloader if has_own else None)

    def divide_again(self) -> None:
        """Draw the clients' parts again, after a change of the partitioner; call it after ``setup('fit')``."""
        if self.has_one_set:
            self._client_datasets = self._hold(self.client_datasets.source)

    def place(self, device: torch.device) -> None:
        """Keep the training set's tensors on the clients' device, if they fit; call it after ``setup('fit')``."""
        self._device = device
        self.client_datasets.place(device, self.memory_limit)

    def reload(self) -> None:
        """Take the datamodule's training set again: the same examples in another form."""
        self.client_datasets.source = training_loader(self.datamodule)
        if self._device is not None:
            self.place(self._device)

    # ---------------------------------------------------------------- loaders

    def client(
        self, client: int, seed: int, full_batch: bool = False, drop_single: bool = False, poisson: PoissonBatches | None = None
    ) -> LightningDataModule:
        """Return the data of one client for an inner Trainer.

        Args:
            client: the client's id.
            seed: determines the order of its examples, and which of them are repeated.
            full_batch: whether to put all examples into one batch.
            drop_single: whether to leave out a last batch of a single example, on which BatchNorm cannot train.
            poisson: the batches of Poisson sampling, if used; see ``ClientDatasets.poisson_batches``.
        """
        loader = self.client_datasets.training_loader(client, seed, full_batch, drop_single, poisson)
        return TrainingView(self.datamodule, loader)

    def client_evaluation_view(self, client: int, part: Part) -> LightningDataModule:
        """Return a part of one client's examples as a validation set, in order and in large batches."""
        loader = self.client_datasets.evaluation_loader(client, part, self._evaluation_batch_size())
        return EvaluationView(self.datamodule, loader)

    def _evaluation_batch_size(self) -> int:
        """Return the batch size of the server's validation loader, if it has one."""
        if not self._large_batch:
            has_own = is_overridden("val_dataloader", self.datamodule, LightningDataModule)
            loaders = self.datamodule.val_dataloader() if has_own else None
            own = self.client_datasets.source.batch_size or 1
            asked = getattr(loaders, "batch_size", None) or getattr(self.datamodule, "eval_batch_size", None)
            self._large_batch = max(own, int(asked or own))
        return self._large_batch

    def _server_loader(self, name: str) -> Any:
        if self.server_set == "clients" and name != "predict_dataloader":
            return self.client_datasets.union_loader("test", self._evaluation_batch_size())
        loader = getattr(self.datamodule, name)()
        if self._client_datasets is not None and not self.is_remote:
            require_alike("The training set", self.client_datasets.source, f"the set of '{name}'", loader)
        return loader

    def server_view(
        self,
        examples: int | float = 1.0,
        batch_size: int | None = None,
        seed: int = 0,
        changed: Callable[[Any], Any] | None = None,
    ) -> LightningDataModule:
        """Return the validation set, not split over ranks; see :class:`~fl_lightning.ServerEvaluation`.

        Args:
            examples: a share of the examples, or their number.
            batch_size: the batch size; None for the loader's own.
            seed: draws the examples.
            changed: a function from the loader to the one to read.
        """

        def make() -> Any:
            loader = reduced(self._server_loader("val_dataloader"), examples, batch_size, seed)
            return loader if changed is None else changed(loader)

        return ServerView(self.datamodule, make)

    def train_dataloader(self) -> Any:
        """Return one round per epoch, or without a federation the union of the clients' examples."""
        if self._serves_rounds:
            return RoundLoader()
        held = self.client_datasets
        if not isinstance(held, ClientDatasets):
            return held.union_loader("training", 1)
        dataset, union = held.union("training")
        source = held.source
        own = is_plain(source.sampler) or self._rank[1] > 1  # on several ranks, Lightning wraps the sampler
        sampler = None if own else held.sampler_of(union, None)
        if self._rank[1] > 1:  # a DataLoader, which Lightning divides
            dataset, union = ClientPart(dataset, union.tolist()), torch.arange(len(union))
        return client_loader(source, dataset, union, None, sampler=sampler)

    def val_dataloader(self) -> Any:
        """Return the server's validation set, split over the ranks without padding."""
        return sharded(self._server_loader("val_dataloader"), *self._rank)

    def test_dataloader(self) -> Any:
        """Return the server's test set, split over the ranks without padding."""
        return sharded(self._server_loader("test_dataloader"), *self._rank)

    def predict_dataloader(self) -> Any:
        """Return the user's prediction set, split over the ranks without padding."""
        return sharded(self._server_loader("predict_dataloader"), *self._rank)

    def teardown(self, stage: str) -> None:
        """Let the user's datamodule clean up, and stop the workers."""
        if self._client_datasets is not None:
            self._client_datasets.release()
        self.datamodule.teardown(stage)

    def on_exception(self, exception: BaseException) -> None:
        """Let the user's datamodule clean up after an error, and stop the workers."""
        if self._client_datasets is not None:
            self._client_datasets.release()
        self.datamodule.on_exception(exception)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the user's datamodule."""
        return self.datamodule.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of the user's datamodule."""
        self.datamodule.load_state_dict(state_dict)

    @property
    def _rank(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
