"""Read a site's data.yaml, which never leaves it, and serve the data under the number that the server gave the site."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningDataModule
from torch.utils.data import IterableDataset, TensorDataset

from fl_lightning.compat.jsonargparse import actions_of, in_words
from fl_lightning.config.null_settings import refuse_null
from fl_lightning.config.wrong_value import wrong_value
from fl_lightning.data.class_names import names_of
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.poisson_loader import Coins, PoissonBatches
from fl_lightning.data.ranges import ranges_of, rounded
from fl_lightning.errors import ConfigurationError, DataError, did_you_mean, require
from fl_lightning.flower.checks import compared, digest_of_names, digest_of_schema, refuse_parts
from fl_lightning.flower.policy import Policy
from fl_lightning.messages import ClientInfo, Part
from fl_lightning.partitioners.base import Partitioner


class WholePartitioner(Partitioner):
    """Assign all examples, in their order, to one client.

    Args:
        seed: with ``first``, draws the parts that the client holds back.
        first: the number of the client.
    """

    needs_labels = False

    def __init__(self, seed: int = 0, first: int = 0) -> None:
        self.seed, self.first = seed, first

    def partition(self, num_examples: int, labels: Any = None) -> list[torch.Tensor]:
        """Return one part."""
        return [torch.arange(num_examples)]


@dataclass
class SiteSettings:
    """Describe a site: the contents of its data.yaml.

    Args:
        datamodule: the datamodule whose training set is the site's.
        validation: a datamodule whose training set is the site's own validation part.
        test: a datamodule whose training set is the site's own test part.
        client_validation: the share of the training set held back for validation, in [0, 1), instead of ``validation``.
        client_test: the share held back for a test, in [0, 1), instead of ``test``.
        seed: with the site's number, draws the shares that are held back; a simulation with the same seed of its partitioner (0
            by default) holds back the same rows. Only the site knows it.
        policy: what a server may have this site do.
        device: the device to train on: ``auto``, ``cpu``, ``cuda``, or ``cuda:1`` for the second GPU.

    Raises:
        ConfigurationError: if the device is not one of these.
    """

    datamodule: LightningDataModule
    validation: LightningDataModule | None = None
    test: LightningDataModule | None = None
    client_validation: float = 0.0
    client_test: float = 0.0
    seed: int = 0
    policy: Policy = field(default_factory=Policy)
    device: str = "auto"

    def __post_init__(self) -> None:
        known = re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device)
        require(known is not None, "device", "auto, cpu, cuda or cuda:NUMBER", self.device)
        refuse_parts({"datamodule": self.datamodule, "validation": self.validation, "test": self.test})

    def torch_device(self) -> torch.device:
        """Return the device.

        Raises:
            ConfigurationError: if this machine does not have it.
        """
        found = "cuda" if self.device == "auto" and torch.cuda.is_available() else self.device
        device, number = torch.device("cpu" if found == "auto" else found), torch.cuda.device_count()
        if device.type == "cuda" and (device.index or 0) >= number:
            raise ConfigurationError(f"'device' is '{self.device}', but torch finds {number} GPUs here. Set 'device: auto'.")
        return device


def read_settings(path: Path) -> SiteSettings:
    """Read data.yaml, which the site's own staff wrote and which may name any class.

    Raises:
        ConfigurationError: if it cannot be read.
    """
    import fl_lightning.data  # noqa: F401 (so that short names of its datamodules are known)

    if not path.is_file():
        raise ConfigurationError(f"'{path}' does not exist. Write a data.yaml; see docs/real_federation.md.")
    if not path.read_bytes().strip():
        raise ConfigurationError(f"'{path}' is empty. Set 'datamodule' in it; see docs/real_federation.md.")
    parser = _parser()
    try:
        parsed = parser.parse_path(str(path))
        refuse_null(parsed, parser)
        return SiteSettings(**vars(parser.instantiate(parsed)))
    except Exception as error:
        raise ConfigurationError(f"'{path}' cannot be read: {_cause(error, parser)}") from error


@cache
def _parser() -> ArgumentParser:
    """Return the parser of every data.yaml."""
    parser = ArgumentParser(prog="data.yaml", exit_on_error=False)
    parser.add_class_arguments(SiteSettings, None, fail_untyped=False)
    return parser


def _cause(error: Exception, parser: ArgumentParser) -> str:
    """Return what is wrong with the settings, with the nearest name of one that does not exist."""
    value = wrong_value(str(error))
    if value is not None:
        return str(value)
    text = in_words(" ".join(str(error).split()) or type(error).__name__)[:600].rstrip(".")
    wrong = re.search(r"[Oo]ption '([\w.]+)'", text)
    near = did_you_mean(wrong[1], [action.dest for action in actions_of(parser)]) if wrong else ""
    return f"{text}.{near}"


def _whole(settings: SiteSettings) -> FederatedDataModule:
    """Return the site's examples as those of one client, set up; a stream is read by its own loader."""
    held: Any = {"client_validation": settings.client_validation, "client_test": settings.client_test}
    whole = FederatedDataModule(settings.datamodule, WholePartitioner(settings.seed), **held)
    whole.prepare_data()
    try:
        whole.setup("fit")
    except DataError:
        loader = _stream(settings.datamodule)
        if loader is None:
            raise
        whole = FederatedDataModule.from_clients({"site": loader}, **held)
        whole.setup("fit")
    return whole


def _stream(datamodule: LightningDataModule) -> Any:
    """Return the loader of a datamodule that reads a stream; None if it does not, or its set-up has failed."""
    try:
        loader = datamodule.train_dataloader()
    except Exception:
        return None
    return loader if isinstance(getattr(loader, "dataset", None), IterableDataset) else None


class SiteData:
    """Serve the examples of one site; see :class:`~fl_lightning.clients.client_data.ClientData`.

    Args:
        settings: the contents of data.yaml.
    """

    def __init__(self, settings: SiteSettings) -> None:
        self._schema = digest_of_schema(settings.datamodule)
        whole = _whole(settings)
        self._views: dict[Part, FederatedDataModule] = {"training": whole}
        self._separate: dict[Part, FederatedDataModule] = {}
        given: dict[Part, LightningDataModule | None] = {"validation": settings.validation, "test": settings.test}
        for part, datamodule in given.items():
            if datamodule is not None:
                self._separate[part] = FederatedDataModule(datamodule, WholePartitioner())
                self._separate[part].prepare_data()
                self._separate[part].setup("fit")
        self._number: int | None = None

    @property
    def number(self) -> int | None:
        """Return the site's number at the server, from which its held-back parts follow; None before the server tells it."""
        return self._number

    @number.setter
    def number(self, number: int) -> None:
        if number != self._number and self.draws_parts:
            partitioner: Any = self.whole.partitioner
            partitioner.first = number
            self.whole.divide_again()
        self._number = number

    @property
    def draws_parts(self) -> bool:
        """Return whether parts are drawn from the training set, which then depend on the site's number."""
        return self.whole.client_validation > 0 or self.whole.client_test > 0

    @property
    def whole(self) -> FederatedDataModule:
        """Return the datamodule of the training set."""
        return self._views["training"]

    def size(self, part: Part) -> int:
        """Return the number of examples of a part; 0 if the site does not have it."""
        if part in self._separate:
            return self._separate[part].num_examples(0)
        found = getattr(self.whole.splits, part)
        return 0 if found is None else int(found.sizes[0])

    def names(self, kind: str) -> tuple[str, ...] | None:
        """Return the names of the site's ``classes`` or ``feature_names``; None if its data have none."""
        return names_of(self.whole.client_datasets.source, kind)

    def info(
        self,
        name: str,
        policy: Policy,
        classes: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        statistics: bool = False,
    ) -> ClientInfo:
        """Return what the server learns before the first round.

        Args:
            name: the site's name.
            policy: what the site consents to tell.
            classes: the names of the server's classes, if it has any.
            features: the names of its features, if it has any.
            statistics: whether it asks for the sums of the inputs.
        """
        counts = tuple(int(count) for count in self.whole.label_counts()[0]) if policy.label_counts else None
        own = self.names("classes"), self.names("feature_names")
        return ClientInfo(
            name=name,
            num_examples=self.size("training"),
            label_counts=counts,
            num_validation=self.size("validation"),
            num_test=self.size("test"),
            streams=self.whole.client_datasets.streams(0),
            evaluations=() if policy.min_noise > 0 else tuple(policy.evaluations),
            classes=compared(own[0], classes),
            features=compared(own[1], features),
            digests=("" if classes else digest_of_names(own[0]), "" if features else digest_of_names(own[1])),
            ranges=self._ranges() if policy.ranges else None,
            moments=self._moments(policy) if statistics else None,
            schema=self._schema,
        )

    def _moments(self, policy: Policy) -> tuple[tuple[str, ...], ...] | None:
        """Return the sums of the training inputs, if the policy allows the server to know them."""
        if not policy.statistics or policy.min_noise > 0:
            return None
        found = self.whole.input_moments(0)
        return None if min(found.counts) < policy.min_count else found.texts()

    def _ranges(self) -> tuple[tuple[float, float, float, float], ...] | None:
        dataset: Any = self.whole.client_datasets.source.dataset
        if type(dataset) is not TensorDataset or dataset.tensors[0].dim() != 2 or self.names("feature_names") is None:
            return None
        return rounded(ranges_of(dataset.tensors[0].double().numpy()))

    def batches(self, full_batch: bool) -> tuple[float, int]:
        """Return the number of batches of an epoch, inf for a stream, and the fewest persons that may be in one of them.

        A person is a row if the data do not name persons; otherwise a batch may be the rows of few persons.
        """
        source, training = self.whole.client_datasets.source, self.whole.indices
        if self.whole.client_datasets.size_is_unknown(0):
            return math.inf, 1
        rows = int(training.sizes[0])
        size = rows if full_batch else min(rows, source.batch_size or 1)
        rest = 0 if source.drop_last and rows > size else rows % size
        persons = self.whole.splits.persons
        most = 1 if persons is None else int(torch.bincount(persons[training[0]]).max())
        return rows // size + (rest > 0), max(1, (rest or size) // most)

    def _here(self, client: int) -> None:
        if client != self.number:
            raise DataError(f"The data of client {client} were requested, but this site is client {self.number}.")

    def num_examples(self, client: int) -> int:
        """See :class:`ClientData`."""
        self._here(client)
        return self.whole.num_examples(0)

    def client(
        self, client: int, seed: int, full_batch: bool = False, drop_single: bool = False, poisson: PoissonBatches | None = None
    ) -> LightningDataModule:
        """See :class:`ClientData`."""
        self._here(client)
        return self.whole.client(0, seed, full_batch, drop_single, poisson)

    def client_evaluation_view(self, client: int, part: Part) -> LightningDataModule:
        """See :class:`ClientData`."""
        self._here(client)
        if part in self._separate:
            return self._separate[part].client_evaluation_view(0, "training")
        return self.whole.client_evaluation_view(0, part)

    def poisson_batches(self, client: int, full_batch: bool, coins: Coins) -> PoissonBatches:
        """See :class:`ClientData`."""
        self._here(client)
        return self.whole.poisson_batches(0, full_batch, coins)
