"""Read a site's data.yaml, which never leaves it, and serve the data under the number that the server gave the site."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningDataModule
from torch.utils.data import IterableDataset

from fl_lightning.compat.jsonargparse import actions_of, in_words
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.poisson_loader import Coins, PoissonBatches
from fl_lightning.errors import ConfigurationError, DataError, did_you_mean, require
from fl_lightning.flower.checks import digest_of_names
from fl_lightning.flower.policy import Policy
from fl_lightning.messages import ClientInfo, Part
from fl_lightning.null_settings import refuse_null
from fl_lightning.partitioners.base import Partitioner


class WholePartitioner(Partitioner):
    """Assign all examples, in their order, to one client."""

    needs_labels = False

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
    policy: Policy = field(default_factory=Policy)
    device: str = "auto"

    def __post_init__(self) -> None:
        known = re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device)
        require(known is not None, "device", "auto, cpu, cuda or cuda:NUMBER", self.device)

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
    parser = ArgumentParser(prog="data.yaml", exit_on_error=False)
    parser.add_class_arguments(SiteSettings, None, fail_untyped=False)
    try:
        parsed = parser.parse_path(str(path))
        refuse_null(parsed, parser)
        return SiteSettings(**vars(parser.instantiate(parsed)))
    except Exception as error:
        raise ConfigurationError(f"'{path}' cannot be read: {_cause(error, parser)}") from error


def _cause(error: Exception, parser: ArgumentParser) -> str:
    """Return what is wrong with the settings, with the nearest name of one that does not exist."""
    text = in_words(" ".join(str(error).split()) or type(error).__name__)[:600].rstrip(".")
    wrong = re.search(r"[Oo]ption '([\w.]+)'", text)
    near = did_you_mean(wrong[1], [action.dest for action in actions_of(parser)]) if wrong else ""
    return f"{text}.{near}"


def _whole(settings: SiteSettings) -> FederatedDataModule:
    """Return the site's examples as those of one client, set up; a stream is read by its own loader."""
    held: Any = {"client_validation": settings.client_validation, "client_test": settings.client_test}
    whole = FederatedDataModule(settings.datamodule, WholePartitioner(), **held)
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
        whole = _whole(settings)
        self._views: dict[Part, FederatedDataModule] = {"training": whole}
        self._separate: dict[Part, FederatedDataModule] = {}
        given: dict[Part, LightningDataModule | None] = {"validation": settings.validation, "test": settings.test}
        for part, datamodule in given.items():
            if datamodule is not None:
                self._separate[part] = FederatedDataModule(datamodule, WholePartitioner())
                self._separate[part].prepare_data()
                self._separate[part].setup("fit")
        self.number: int | None = None

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

    def info(self, name: str, consent: bool) -> ClientInfo:
        """Return what the server learns before the first round.

        Args:
            name: the site's name.
            consent: whether to tell the label counts.
        """
        counts = None
        if consent:
            counts = tuple(int(count) for count in self.whole.label_counts()[0])
        dataset: Any = self.whole.client_datasets.source.dataset
        names = getattr(dataset, "classes", None)
        classes = None if names is None else tuple(str(name)[:100] for name in names)
        streams = self.whole.client_datasets.size_is_unknown(0)
        sizes = self.size("training"), counts, self.size("validation"), self.size("test")
        return ClientInfo(name, *sizes, classes, streams, digest_of_names(getattr(dataset, "feature_names", None)))

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
