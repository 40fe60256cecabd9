"""Distribute any LightningDataModule over clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Literal

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import DataLoader

from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.data.changes import FeatureNoise, LabelAveraging
from fl_lightning.data.client_datasets import ClientDatasets
from fl_lightning.data.client_part import ClientPart
from fl_lightning.data.client_sets import ClientSets, as_loader, refuse_package
from fl_lightning.data.client_source import ClientSource
from fl_lightning.data.client_splits import ClientSplits, HeldOut, check_parts, divide, held_out_last, hold_back
from fl_lightning.data.labels import labels_at_hand, require_alike
from fl_lightning.data.loaders import client_loader, reduced, sharded, training_loader
from fl_lightning.data.opened_clients import LazyClients, LazyDatasets, OwnLoaders
from fl_lightning.data.remote import RemoteDatasets, clients_elsewhere
from fl_lightning.data.samplers import client_sampler, is_plain
from fl_lightning.data.tensor_loader import Coins, PoissonBatches
from fl_lightning.data.views import TRANSFER_HOOKS, GivenLoaders, RoundLoader, View, from_base, leave_out, unless_round
from fl_lightning.errors import require, require_texts
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.showing import client_bars, settings_table, short_repr
from fl_lightning.messages import ClientInfo, Part
from fl_lightning.partitioners.base import Partitioner
from fl_lightning.utilities.checkpoints import LoadsSafely

_PARTS: dict[str, Part] = {"val_dataloader": "validation", "test_dataloader": "test"}


class FederatedDataModule(LoadsSafely, LightningDataModule):
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
            parts (feature skew; FedLoss thesis, 3.2). Images are first scaled to [0, 1]. Not with held-out clients.
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
        super().__init__()
        if clients is not None:
            for name, given in (("datamodule", datamodule), ("partitioner", partitioner)):
                known = "null with 'data.clients', whose data are not divided"
                require(given is None, f"data.{name}", known, type(given).__name__)
            require_texts("data.clients", clients)
            datamodule = ClientSets(clients)
        refuse_package("'data.datamodule'", datamodule)
        others = "Give one, each client its own ('data.clients'), or write FederatedDataModule.from_loaders or from_clients."
        require(isinstance(datamodule, LightningDataModule), "data.datamodule", "a LightningDataModule", datamodule, others)
        assert datamodule is not None
        for name, one in datamodule.clients.items() if isinstance(datamodule, ClientSets) else ():
            many, hint = isinstance(one, LazyClients | FederatedDataModule), "Give it as 'data.datamodule' or to the Trainer."
            require(not many, f"data.clients.{name}", "one client, not the holder of many", type(one).__name__, hint)
        self.datamodule, self.partitioner, self.clients = datamodule, partitioner, clients
        self.client_validation, self.client_test = client_validation, client_test
        own = isinstance(datamodule, ClientSets | LazyClients)
        check_parts(client_validation, client_test, server_set, public_share, held_out_clients, own)
        known = "0 with held-out clients" if held_out_clients else "0 or above"
        require(feature_noise == 0 or (feature_noise > 0 and not held_out_clients), "data.feature_noise", known, feature_noise)
        require(memory_limit is None or memory_limit >= 0, "data.memory_limit", "0 or above, in GiB, or null", memory_limit)
        require(not own or partitioner is None, "data.partitioner", "null if the examples have a client already", partitioner)
        scales = held_out_clients and bool(getattr(datamodule, "standardize", False))
        known = "false with held-out clients, whose rows it would read; let the model scale: Standardized"
        require(not scales, "data.datamodule.standardize", known, scales)
        self.held_out_clients, self.server_set, self.memory_limit = held_out_clients, server_set, memory_limit
        self.public_share, self.feature_noise, self.rebalancing = public_share, feature_noise, rebalancing
        self._client_datasets: ClientSource | None = None
        self._serves_rounds = False
        self._device: torch.device | None = None
        self.prepare_data_per_node = datamodule.prepare_data_per_node
        served = _PARTS if server_set == "clients" else ()
        leave_out(self, *(name for name in (*_PARTS, "predict_dataloader") if not (name in served or self._serves(name))))
        for hook in filter(self._serves, TRANSFER_HOOKS):
            vars(self)[hook] = unless_round(getattr(datamodule, hook))

    def __repr__(self) -> str:
        return short_repr(self)

    def _repr_html_(self) -> str:
        """Return the settings, and after ``setup('fit')`` each client's number of examples."""
        held: ClientSource | None = vars(self).get("_client_datasets")
        if held is None or not (self.is_remote or held.whole):  # streams have no sizes
            return settings_table(self)
        return settings_table(self) + client_bars(held.splits.training.names, held.splits.training.sizes[:, None])

    @classmethod
    def from_clients(
        cls,
        clients: Mapping[str, Any],
        val: Any = None,
        test: Any = None,
        *,
        batch_size: int = 32,
        shuffle: bool = True,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
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
                To read clients when they are drawn, write a :class:`~fl_lightning.LazyClients`.
            val: the server's validation set, a dataset or DataLoader; or each client's own by name, whose union is then the
                server's.
            test: the same for the test set.
            batch_size: the examples per batch, >= 1, for clients given as datasets.
            shuffle: whether they shuffle their training examples.
            num_workers: the worker processes that read them, >= 0.
            collate_fn: the function that makes a batch of examples; torch's by default.
            settings: further arguments of :class:`FederatedDataModule`, such as ``client_test``.

        Raises:
            ConfigurationError: if a value is outside its range, or validation sets do not belong to the clients.
        """
        return cls(ClientSets(clients, val, test, batch_size, shuffle, num_workers, collate_fn), **settings)

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
        if name == "trainer":
            refuse_package("the Trainer", value)
        if name == "batch_size" and hasattr(vars(self).get("datamodule"), name):  # a BatchSizeFinder without a federation
            setattr(self.datamodule, name, value)
            if isinstance(self._client_datasets, ClientDatasets):
                self.reload()
            return
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Return attributes of the user's datamodule, which a module may read from ``self.trainer.datamodule``."""
        return from_base(self, "datamodule", name)

    @property
    def has_validation_set(self) -> bool:
        """Return whether the server has validation data."""
        return self.server_set == "clients" or self._serves("val_dataloader")

    def serve_rounds(self, active: bool) -> None:
        """Set whether ``train_dataloader`` serves rounds, as the orchestrator requests, or the clients' examples."""
        self._serves_rounds = active

    # ---------------------------------------------------------------- the clients

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
    def origin(self) -> str:
        """Return the origin of the data, in words."""
        own = str(getattr(self.datamodule, "origin", type(self.datamodule).__name__))
        return f"{self.num_clients} sites, and {own} here" if self.is_remote else own

    @property
    def num_clients(self) -> int:
        """Return K, the number of clients that train, which is known after ``setup('fit')``."""
        return len(self.indices)

    def num_examples(self, client: int) -> int:
        """Return the number of training examples of one client, n_k; a public share does not count."""
        return self.indices[client].numel()

    def client_name(self, client: int) -> str:
        """Return the client's domain or the value of its column, if it has one, otherwise its number."""
        own, position = self.indices, client
        if (unseen := self.splits.unseen) is not None and client >= len(own):
            own, position = unseen, client - len(own)
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

    def label_counts(self) -> Tensor:
        """Count each client's training examples by class, by its own labels, int64, shape (K, C), after ``setup('fit')``.

        Raises:
            DataError: if the training set does not have labels.
        """
        return self.client_datasets.label_counts()

    def evaluated_persons(self, client: int, part: Part) -> Tensor | None:
        """Return the person of each example of a part of one client's, in order, int64; None if the data name no persons."""
        return self.client_datasets.persons_of(client, part)

    def poisson_batches(self, client: int, full_batch: bool, coins: Coins) -> PoissonBatches:
        """Return one client's batches of Poisson sampling; see ``ClientDatasets.poisson_batches``."""
        return self.client_datasets.poisson_batches(client, full_batch, coins)

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
            return  # :meth:`register_clients` tells their sizes
        base, held = self.datamodule, self._client_datasets
        divided = not isinstance(base, ClientSets | LazyClients)
        known = "set, unless clients have data of their own ('data.clients')"
        example = "A complete configuration: fl-lightning fit --config adafed_mnist."
        require(not divided or self.partitioner is not None, "data.partitioner", known, None, example)
        if isinstance(base, LazyClients):
            held = held or LazyDatasets(base)
        elif isinstance(base, ClientSets) and base.opened:
            held = held or OwnLoaders(ClientDatasets(base.splits, base.train_dataloader(), readers=base.readers), base.opened)
        elif stage == "fit" or self.server_set == "clients" or not divided:
            source = training_loader(base)
            held = held or self._hold(source)
            held.source = source
        if held is not None and not held.whole:  # clients that are read as they are
            for name in ("client_validation", "client_test", "feature_noise", "held_out_clients", "rebalancing"):
                require(not getattr(self, name), f"data.{name}", "off", getattr(self, name), f"{held.reason}.")
        self._client_datasets = held

    def _hold(self, source: DataLoader[Any]) -> ClientDatasets:
        base, partitioner, seed = self.datamodule, self.partitioner, int(getattr(self.partitioner, "seed", 0))
        validation, readers = base.val_dataloader if self._serves("val_dataloader") else None, {}
        if isinstance(base, ClientSets):
            splits, labels, readers = base.splits, labels_at_hand(source.dataset), base.readers
            validation = partial(as_loader, base.given["validation"])
        elif partitioner is not None:
            splits, labels = divide(source, partitioner, self.public_share, seed, getattr(base, "is_stand_in", False))
        shares = {"validation": self.client_validation, "test": self.client_test}
        splits = hold_back(splits, shares, labels, seed, int(getattr(partitioner, "first", 0)))
        splits, order = held_out_last(splits, self.held_out_clients, seed)
        noise = FeatureNoise(self.feature_noise, len(splits.training), seed) if self.feature_noise else None
        readers = {part: [own[k] for k in order] for part, own in readers.items()}
        return ClientDatasets(splits, source, labels, noise, self.rebalancing, readers, validation)

    def _serves(self, method: str) -> bool:
        """Return whether the user's datamodule has a loader or a hook of its own."""
        return is_overridden(method, self.datamodule, LightningDataModule)

    def divide_again(self) -> None:
        """Draw the clients' parts again, after a change of the partitioner; call it after ``setup('fit')``."""
        if isinstance(self._client_datasets, ClientDatasets):
            self._client_datasets = self._hold(self._client_datasets.source)

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
        return View(self.datamodule, train=lambda: loader)

    def client_evaluation_view(self, client: int, part: Part) -> LightningDataModule:
        """Return a part of one client's examples as a validation set, in order and in large batches."""
        loader = self.client_datasets.evaluation_loader(client, part, self._evaluation_batch_size)
        return View(self.datamodule, val=lambda: loader)

    @cached_property
    def _evaluation_batch_size(self) -> int:
        """Return the batch size of the server's validation loader, if it has one."""
        loaders = self.datamodule.val_dataloader() if self._serves("val_dataloader") else None
        own = self.client_datasets.source.batch_size or 1
        asked = getattr(loaders, "batch_size", None) or getattr(self.datamodule, "eval_batch_size", None)
        return max(own, int(asked or own))

    def server_loader(self, name: str) -> Any:
        """Return one of the server's loaders, not split over ranks, by the name of the method that Lightning calls."""
        part = _PARTS.get(name)
        if part is not None and self.server_set == "clients":
            return self.client_datasets.union_loader("test", self._evaluation_batch_size)
        if isinstance(self.datamodule, ClientSets) and part in self.datamodule.readers:  # the clients' own
            return self.client_datasets.union_loader(part, self.client_datasets.source.batch_size or 1)
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
            loader = reduced(self.server_loader("val_dataloader"), examples, batch_size, seed)
            return loader if changed is None else changed(loader)

        return View(self.datamodule, val=make, lasts=True)

    def train_dataloader(self) -> Any:
        """Return one round per epoch, or without a federation the union of the clients' examples."""
        if self._serves_rounds:
            return RoundLoader()
        held = self.client_datasets
        if not isinstance(held, ClientDatasets):
            return held.union_loader("training", held.source.batch_size or 1)
        dataset, union = held.union("training")
        source = held.source
        own = is_plain(source.sampler) or self._rank[1] > 1  # on several ranks, Lightning wraps the sampler
        sampler = None if own else client_sampler(source, union, None)
        if self._rank[1] > 1:  # a DataLoader, which Lightning divides
            dataset, union = ClientPart(dataset, union.tolist()), torch.arange(len(union))
        return client_loader(source, dataset, union, None, sampler=sampler)

    def val_dataloader(self) -> Any:
        """Return the server's validation set, split over the ranks without padding."""
        return sharded(self.server_loader("val_dataloader"), *self._rank)

    def test_dataloader(self) -> Any:
        """Return the server's test set, split over the ranks without padding."""
        return sharded(self.server_loader("test_dataloader"), *self._rank)

    def predict_dataloader(self) -> Any:
        """Return the user's prediction set, split over the ranks without padding."""
        return sharded(self.server_loader("predict_dataloader"), *self._rank)

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
