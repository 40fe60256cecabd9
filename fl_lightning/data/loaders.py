"""Create loaders for a part of a dataset: a client's, or a rank's."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler, UnrepeatedDistributedSamplerWrapper
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from fl_lightning.data.client_part import ClientPart
from fl_lightning.data.labels import labels_at_hand
from fl_lightning.data.resident_loader import ClientLoader, ResidentLoader, reader_settings
from fl_lightning.data.samplers import Shuffled, check_sampler
from fl_lightning.data.tensor_loader import PoissonBatches, PoissonLoader, TensorLoader
from fl_lightning.errors import DataError
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.seeding import generator
from fl_lightning.functional.splitting import hold_out


def training_loader(datamodule: LightningDataModule) -> DataLoader[Any]:
    """Return the one DataLoader of a datamodule's training set.

    Raises:
        DataError: if it is not one DataLoader over a map-style dataset, with a sampler that can be carried over.
    """
    name = type(datamodule).__name__
    loader = datamodule.train_dataloader() if is_overridden("train_dataloader", datamodule, LightningDataModule) else None
    if not isinstance(loader, DataLoader):
        found = "has no 'train_dataloader'" if loader is None else f"returns a {type(loader).__name__}"
        raise DataError(
            f"{name} {found}, but a federation needs one torch DataLoader to divide. Return one, over a dataset that joins all "
            "examples (torch.utils.data.ConcatDataset)."
        )
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        raise DataError(
            f"{name} trains on an iterable dataset, whose examples cannot be assigned to clients. Use a map-style dataset "
            "with '__len__' and '__getitem__', or give each client a dataset of its own: FederatedDataModule.from_clients."
        )
    check_sampler(loader, f"{name}.train_dataloader()")
    if type(loader) is not DataLoader:
        rank_zero_warn(
            f"{name}.train_dataloader() returns a {type(loader).__name__}, but clients get a plain torch DataLoader with its "
            "batch size, shuffling, collate_fn and workers. Move anything else into the dataset or collate_fn."
        )
    return loader


def reads_tensors(dataset: Any, reader: Any) -> bool:
    """Return whether a loader's batches of a dataset are whole rows of tensors, which can be indexed at once."""
    return type(dataset) is TensorDataset and reader.collate_fn is default_collate


def client_loader(
    source: DataLoader[Any],
    dataset: Any,
    indices: Tensor,
    generator: torch.Generator | None,
    full_batch: bool = False,
    drop_single: bool = False,
    sampler: Sampler[int] | PoissonBatches | None = None,
    reader: DataLoader[Any] | ResidentLoader | None = None,
) -> Any:
    """Return a loader like ``source`` over a client's examples.

    Args:
        source: provides batch size and shuffling.
        dataset: the dataset that ``indices`` refer to.
        indices: the examples, int64, shape (m,).
        generator: shuffles, and seeds random transforms; None for torch's global one.
        full_batch: whether all examples are one batch.
        drop_single: whether to leave out a last batch of a single example.
        sampler: draws positions in ``indices``; by default, each once, shuffled if those of ``source`` are.
        reader: provides collation and workers, or is the workers that already read ``dataset``; ``source`` by default.
    """
    drawn = sampler is not None and not isinstance(sampler, PoissonBatches)
    count = len(sampler) if drawn else indices.numel()  # type: ignore[arg-type]
    size = indices.numel() if full_batch else source.batch_size
    assert size is not None
    # A client smaller than one batch must not lose all its examples.
    whole = source.drop_last and not full_batch and count > size
    single = drop_single and count > size > 1 and count % size == 1
    shuffle = isinstance(source.sampler, RandomSampler)
    return part_loader(reader or source, dataset, indices, size, generator, shuffle, sampler, whole or single)


def part_loader(
    reader: Any,
    dataset: Any,
    indices: Tensor,
    batch_size: int,
    generator: torch.Generator | None = None,
    shuffle: bool = False,
    sampler: Sampler[int] | PoissonBatches | None = None,
    drop_last: bool = False,
) -> Any:
    """Return a loader of some examples, by default to evaluate: in order, each once.

    Args:
        reader: a loader that provides collation and workers, or workers that already read ``dataset``.
        dataset: the dataset.
        indices: the examples, int64, shape (m,).
        batch_size: the examples per batch.
        generator: shuffles, and seeds random transforms; None for torch's global one.
        shuffle: whether to shuffle, anew in each iteration.
        sampler: draws positions, or batches of them, in ``indices``.
        drop_last: whether to leave out a last batch that is smaller.
    """
    assert not isinstance(sampler, PoissonBatches) or sampler.size == indices.numel()
    resident, reader = (reader, reader.reader) if isinstance(reader, ResidentLoader) else (None, reader)
    if reads_tensors(dataset, reader):
        if isinstance(sampler, PoissonBatches):
            return PoissonLoader(dataset.tensors, indices, sampler)
        if sampler is None:
            order = (generator or torch.default_generator) if shuffle else None
            return TensorLoader(dataset, batch_size, indices, order, drop_last)
    if resident is not None and sampler is None:
        return ClientLoader(resident, indices, batch_size, generator, shuffle, drop_last)
    part = ClientPart(dataset, indices.tolist())
    # A loader draws seeds for its workers from its own generator, which must not advance the sampler's.
    workers = None if generator is None else torch.Generator().manual_seed(generator.initial_seed())
    settings = {**reader_settings(reader), "generator": workers}
    if isinstance(sampler, PoissonBatches):
        return DataLoader(part, batch_sampler=sampler, **settings)
    if sampler is None and shuffle:
        sampler = RandomSampler(part) if generator is None else Shuffled(len(part), generator)
    return DataLoader(part, batch_size, sampler=sampler, drop_last=drop_last, **settings)


def reduced(loaders: Any, examples: int | float, batch_size: int | None, seed: int) -> Any:
    """Return an evaluation loader, reusable many times, over a part of the examples or with other batches.

    Args:
        loaders: the user's loader.
        examples: a number, or a share in (0, 1]; drawn by the seed, in the proportions of the classes if the dataset
            provides labels.
        batch_size: the batch size; None for the loader's own.
        seed: decides which examples are drawn.

    Raises:
        DataError: if the user has several loaders, or one that cannot be divided.
    """
    in_memory = isinstance(loaders, TensorLoader)
    plain = type(loaders) is DataLoader and loaders.batch_size is not None and type(loaders.sampler) is SequentialSampler
    plain = in_memory or (plain and not isinstance(loaders.dataset, IterableDataset))
    whole = examples == 1.0 and isinstance(examples, float)
    if whole and batch_size is None and not (plain and loaders.num_workers and not loaders.drop_last):
        return loaders
    if not plain:
        raise DataError(
            f"'federation.server_evaluation' cannot divide a {type(loaders).__name__}. Let 'val_dataloader' return one "
            "DataLoader over a map-style dataset in order, or remove 'examples' and 'batch_size'."
        )
    dataset = loaders.whole if in_memory else loaders.dataset
    chosen = loaders.indices if in_memory and loaders.indices is not None else torch.arange(len(dataset))
    if not whole:
        size = len(chosen)
        count = min(size, examples if isinstance(examples, int) else max(1, round(examples * size)))
        part, counts = Partition.of_parts([chosen]), torch.tensor([count])
        chosen = hold_out(part, counts, labels_at_hand(dataset), generator(seed, "server evaluation"))[1][0]
    reader = ResidentLoader(loaders) if loaders.num_workers else loaders
    return part_loader(reader, dataset, chosen, batch_size or loaders.batch_size)


def fewest_examples(loaders: Any) -> int | None:
    """Return the number of examples of the smallest evaluation set that :func:`sharded` would split; None if there is none."""
    if isinstance(loaders, list | tuple | dict):
        each = [fewest_examples(loader) for loader in (loaders.values() if isinstance(loaders, dict) else loaders)]
        return min((size for size in each if size is not None), default=None)
    dataset = getattr(loaders, "dataset", None)
    return None if dataset is None or isinstance(dataset, IterableDataset) else len(dataset)


def sharded(loaders: Any, rank: int, ranks: int) -> Any:
    """Return a rank's part of one or more evaluation loaders, without padding; unchanged on one rank.

    Raises:
        DataError: if a set has fewer examples than the run has ranks.
    """
    if ranks == 1:
        return loaders
    if isinstance(loaders, list | tuple):
        return [sharded(loader, rank, ranks) for loader in loaders]
    if isinstance(loaders, dict):
        return {name: sharded(loader, rank, ranks) for name, loader in loaders.items()}
    in_memory = isinstance(loaders, TensorLoader)
    divided = in_memory or (isinstance(loaders, DataLoader) and loaders.batch_size is not None)
    if not divided or isinstance(loaders.dataset, IterableDataset):
        return loaders  # a custom loader may divide itself
    size = len(loaders.dataset)
    if size < ranks:
        raise DataError(
            f"An evaluation set of {size} examples cannot be split over {ranks} ranks. Lower 'trainer.devices' or add examples."
        )
    if in_memory:
        return loaders.shard(rank, ranks)
    own = type(loaders.sampler) not in (RandomSampler, SequentialSampler)
    split = UnrepeatedDistributedSamplerWrapper if own else UnrepeatedDistributedSampler
    whole: Any = loaders.sampler if own else loaders.dataset
    sampler = split(whole, num_replicas=ranks, rank=rank, shuffle=False)
    return DataLoader(
        loaders.dataset,
        batch_size=loaders.batch_size,
        sampler=sampler,
        drop_last=loaders.drop_last,
        **reader_settings(loaders),
    )
