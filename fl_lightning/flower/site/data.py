"""Serve a site's data under the number that the server gave the site."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import IterableDataset

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.input_statistics import input_moments
from fl_lightning.data.labels import names_of
from fl_lightning.data.schema import categories_of, schema_of
from fl_lightning.data.tensor_loader import Coins, PoissonBatches
from fl_lightning.errors import DataError
from fl_lightning.flower.checks import digest_of_names, digest_of_schema
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.settings import SiteSettings
from fl_lightning.functional.digest import digest
from fl_lightning.functional.small_counts import without_channels, without_small
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


def _rows_of(batch: Any) -> list[str]:
    """Return a digest of each example of a batch; of the whole batch if it is not made of tensors of one length."""
    parts = list(batch) if isinstance(batch, list | tuple) else [batch]
    tensors = [part for part in parts if isinstance(part, torch.Tensor) and part.dim()]
    if len(tensors) < len(parts) or len({len(tensor) for tensor in tensors}) != 1:
        return [digest(batch)]
    return [digest(list(row)) for row in zip(*tensors, strict=True)]


class SiteData:
    """Serve the examples of one site; see :class:`~fl_lightning.core.option.ClientData`.

    Args:
        settings: the contents of data.yaml.
    """

    def __init__(self, settings: SiteSettings) -> None:
        self._datamodule, self._schema = settings.datamodule, digest_of_schema(settings.datamodule)
        self.whole = _whole(settings)
        """The datamodule of the training set."""
        self._separate: dict[Part, FederatedDataModule] = {}
        given: dict[Part, LightningDataModule | None] = {"validation": settings.validation, "test": settings.test}
        for part, datamodule in given.items():
            if datamodule is not None:
                self._separate[part] = FederatedDataModule(datamodule, WholePartitioner())
                self._separate[part].prepare_data()
                self._separate[part].setup("fit")
        self._number: int | None = None
        self.client_id: int | None = None
        """The site's id in the current fit, which is its number unless sites are held out."""

    def take_number(self, number: int) -> None:
        """Take the site's number at the server, from which its held-back parts follow."""
        if number != self._number and self.draws_parts:
            partitioner: Any = self.whole.partitioner
            partitioner.first = number
            self.whole.divide_again()
        self._number = number

    @property
    def draws_parts(self) -> bool:
        """Return whether parts are drawn from the training set, which then depend on the site's number."""
        return self.whole.client_validation > 0 or self.whole.client_test > 0

    def size(self, part: Part) -> int:
        """Return the number of examples of a part; 0 if the site does not have it."""
        if part in self._separate:
            return self._separate[part].num_examples(0)
        found = getattr(self.whole.splits, part)
        return 0 if found is None else int(found.sizes[0])

    @property
    def streams(self) -> bool:
        """Return whether the site trains on a stream without a length."""
        return self.whole.client_datasets.streams(0)

    @property
    def names_persons(self) -> bool:
        """Return whether the data name persons, who may have several rows."""
        return self.whole.splits.persons is not None

    def units(self, part: Part) -> int:
        """Return the number of persons of a part, or of rows if the data name no persons; of a stream the least, 1."""
        data = self._separate.get(part, self.whole)
        indices = data.indices if part in self._separate else getattr(self.whole.splits, part)
        persons = data.splits.persons
        if persons is None or indices is None:
            return self.size(part)
        return len(set(persons[indices[0]].tolist()))

    def names(self, kind: str) -> tuple[str, ...] | None:
        """Return the names of the site's ``classes`` or ``feature_names``; None if its data have none."""
        return names_of(self.whole.client_datasets.source, kind) or names_of(self._datamodule, kind)

    def info(self, name: str, policy: Policy, statistics: bool = False, summed: bool = False) -> ClientInfo:
        """Return what the site could tell before the first round; what its policy lets leave is a part of it.

        Args:
            name: the site's name.
            policy: what the site consents to tell.
            statistics: whether the server asks for the sums of the inputs.
            summed: whether it asks for the sums of the inputs in a sum over all sites only, which comes later.
        """
        least = policy.min_rows
        parts: tuple[Part, ...] = ("validation", "test")
        sizes = {part: self.size(part) if self.units(part) >= least else 0 for part in parts}
        adds = summed and self._tells_moments(policy)
        return ClientInfo(
            name=name,
            num_examples=self.size("training"),
            label_counts=self._label_counts(least) if "label_counts" in policy.told else None,
            num_validation=sizes["validation"],
            num_test=sizes["test"],
            streams=self.streams,
            digests=(digest_of_names(self.names("classes")), digest_of_names(self.names("feature_names"))),
            moments=() if adds else self.moments(policy) if statistics else None,
            schema=self._schema,
            sampling=self._sampling(),
        )

    def _label_counts(self, least: int) -> tuple[int, ...] | None:
        """Return the counts of all classes, or None if one is small: with the number of examples, the others would tell it."""
        counts = units = [int(count) for count in self.whole.label_counts()[0]]
        persons, rows = self.whole.splits.persons, self.whole.indices[0]
        if persons is not None:  # all rows of a class may be those of one
            labels = self.whole.client_datasets.all_labels()[rows]
            units = [len(set(persons[rows][labels == label].tolist())) for label in range(len(counts))]
        return None if any(0 < count < least for count in units) else tuple(counts)

    def _sampling(self) -> tuple[int, float] | None:
        if self.whole.client_datasets.size_is_unknown(0) or self.whole.client_datasets.source.batch_size is None:
            return None
        batches = self.whole.poisson_batches(0, False, lambda batch, count: torch.zeros(count))  # only counted
        return len(batches), batches.rate

    def _tells_moments(self, policy: Policy) -> bool:
        return "statistics" in policy.told and not self.whole.client_datasets.size_is_unknown(0)

    def moments(self, policy: Policy, summed: bool = False) -> tuple[tuple[str, ...], ...] | None:
        """Return the sums of the training inputs, if the policy allows the server to know them.

        Args:
            policy: what the site consents to tell.
            summed: whether the server gets them in a sum over sites only. Channels with few numbers are then 0 in the sum;
                otherwise the site tells nothing if it has any.
        """
        if not self._tells_moments(policy) or (policy.update.masks is not None and not summed):
            return None
        found, size = input_moments(self.whole, 0), self.size("training")
        least = policy.min_rows * self._rows_of_a_person  # rows in which there are so many persons, whoever they are
        sparse = {k for k, count in enumerate(found.counts) if count < least or size < least}  # an image has many numbers
        if sparse and not summed:
            return None
        found = without_small(found, categories_of(self._datamodule, len(found.counts)), least)
        return without_channels(found, sparse).texts()

    @property
    def _rows_of_a_person(self) -> int:
        """Return the largest number of training rows that a person has; 1 if the data do not name persons."""
        persons = self.whole.splits.persons
        return 1 if persons is None else int(torch.bincount(persons[self.whole.indices[0]]).max())

    @property
    def needs_schema(self) -> bool:
        """Return whether missing values become the most frequent category, which a server without a schema cannot know."""
        schema = schema_of(self._datamodule)
        return schema is not None and bool(schema.filled)

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
        return rows // size + (rest > 0), max(1, (rest or size) // self._rows_of_a_person)

    def num_examples(self, client: int) -> int:
        """See :class:`ClientData`."""
        return self.whole.num_examples(0)

    def client(
        self, client: int, seed: int, full_batch: bool = False, drop_single: bool = False, poisson: PoissonBatches | None = None
    ) -> LightningDataModule:
        """See :class:`ClientData`."""
        return self.whole.client(0, seed, full_batch, drop_single, poisson)

    def client_evaluation_view(self, client: int, part: Part) -> LightningDataModule:
        """See :class:`ClientData`."""
        data = self._separate.get(part)
        return self.whole.client_evaluation_view(0, part) if data is None else data.client_evaluation_view(0, "training")

    def version(self, part: Part) -> str:
        """Return a digest of a part's rows, in whatever order."""
        assert self.client_id is not None
        batches = self.client_evaluation_view(self.client_id, part).val_dataloader()
        return digest(sorted(row for batch in batches for row in _rows_of(batch)))

    def evaluated_persons(self, client: int, part: Part) -> torch.Tensor | None:
        """See :class:`ClientData`."""
        data = self._separate.get(part)
        return self.whole.evaluated_persons(0, part) if data is None else data.evaluated_persons(0, "training")

    def poisson_batches(self, client: int, full_batch: bool, coins: Coins) -> PoissonBatches:
        """See :class:`ClientData`."""
        return self.whole.poisson_batches(0, full_batch, coins)
