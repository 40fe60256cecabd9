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
from fl_lightning.data.poisson_loader import PoissonBatches, PoissonLoader
from fl_lightning.data.resident_loader import ClientLoader, ResidentLoader
from fl_lightning.data.samplers import Shuffled, check_sampler, is_plain
from fl_lightning.data.tensor_loader import TensorLoader
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
    if not is_overridden("train_dataloader", datamodule, LightningDataModule):
        raise DataError(f"{name} has no 'train_dataloader', so there is nothing to divide among clients. Implement it.")
    loader = datamodule.train_dataloader()
    if not isinstance(loader, DataLoader):
        raise DataError(
            f"{name}.train_dataloader() returns a {type(loader).__name__}, but a federation needs one torch DataLoader to "
            "divide. Concatenate the datasets (torch.utils.data.ConcatDataset) and return one DataLoader."
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


def indexes(source: DataLoader[Any]) -> bool:
    """Return whether such a loader indexes whole batches out of tensors at once."""
    tensors = type(source.dataset) is TensorDataset and source.collate_fn is default_collate
    return tensors and not source.drop_last and is_plain(source.sampler)


def client_loader(
    source: DataLoader[Any],
    indices: Tensor,
    generator: torch.Generator | None,
    in_memory: bool = True,
    dataset: Any = None,
    batch_size: int | None = None,
    drop_single: bool = False,
    resident: ResidentLoader | None = None,
    sampler: Sampler[int] | None = None,
    reader: DataLoader[Any] | None = None,
) -> Any:
    """Return a loader like ``source`` over some of its examples.

    Args:
        source: provides dataset, batch size and shuffling.
        indices: the examples, int64, shape (m,).
        generator: the generator for shuffling; None uses torch's global one.
        in_memory: whether to index whole batches if the dataset is a TensorDataset with the default collation.
        dataset: the dataset that ``indices`` refer to, if it is not that of ``source``.
        batch_size: replaces the batch size of ``source``; no example is then dropped.
        drop_single: whether to leave out a last batch of a single example.
        resident: workers that already read the dataset.
        sampler: draws positions in ``indices``; by default, each once, shuffled if those of ``source`` are.
        reader: provides collation and workers; ``source`` by default.
    """
    dataset, reader = source.dataset if dataset is None else dataset, reader or source
    shuffle = isinstance(source.sampler, RandomSampler)
    size = source.batch_size if batch_size is None else batch_size
    assert size is not None
    # A client smaller than one batch must not lose all its examples.
    count = indices.numel() if sampler is None else len(sampler)  # type: ignore[arg-type]
    drop_last = source.drop_last and batch_size is None and count > size
    single = drop_single and count > size > 1 and count % size == 1
    if (
        sampler is None
        and in_memory
        and type(dataset) is TensorDataset
        and reader.collate_fn is default_collate
        and not source.drop_last
    ):
        if shuffle and generator is None:
            generator = torch.default_generator
        return TensorLoader(dataset.tensors, size, indices, generator if shuffle else None, drop_single=single)
    if resident is not None and sampler is None:
        return ClientLoader(resident, indices, size, generator, shuffle=shuffle, drop_last=drop_last or single)
    part = ClientPart(dataset, indices.tolist())
    # A loader draws seeds for its workers from its own generator, which must not advance the sampler's.
    if sampler is None and shuffle:
        sampler = RandomSampler(part) if generator is None else Shuffled(len(part), generator)
    workers = None if generator is None else torch.Generator().manual_seed(generator.initial_seed())
    return DataLoader(
        part,
        batch_size=size,
        sampler=sampler,
        generator=workers,
        drop_last=drop_last or single,
        **_worker_settings(reader),
    )


def poisson_loader(
    reader: DataLoader[Any], indices: Tensor, order: torch.Generator, dataset: Any, batches: PoissonBatches
) -> Any:
    """Return a loader with the collation and workers of ``reader``, and Poisson-sampled batches."""
    assert batches.size == indices.numel()
    if type(dataset) is TensorDataset and reader.collate_fn is default_collate:
        return PoissonLoader(dataset.tensors, indices, batches)
    sampler: Any = batches
    workers = torch.Generator().manual_seed(order.initial_seed())
    part = ClientPart(dataset, indices.tolist())
    return DataLoader(part, batch_sampler=sampler, generator=workers, **_worker_settings(reader))


def resident_loader(source: DataLoader[Any]) -> ResidentLoader | None:
    """Return workers for the dataset of a loader that uses workers; None if the main process reads."""
    return ResidentLoader(source.dataset, _worker_settings(source)) if source.num_workers else None


def evaluation_loader(
    reader: DataLoader[Any], dataset: Any, indices: Tensor, batch_size: int, resident: ResidentLoader | None = None
) -> Any:
    """Return a loader with the collation and workers of ``reader`` over some examples in order, each once."""
    if type(dataset) is TensorDataset and reader.collate_fn is default_collate:
        return TensorLoader(dataset.tensors, batch_size, indices)
    if resident is not None:
        return ClientLoader(resident, indices, batch_size, torch.Generator().manual_seed(0), evaluates=True)
    return DataLoader(ClientPart(dataset, indices.tolist()), batch_size=batch_size, **_worker_settings(reader))


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
    plain = type(loaders) is DataLoader and loaders.batch_size is not None and type(loaders.sampler) is SequentialSampler
    plain = plain and not isinstance(loaders.dataset, IterableDataset)
    whole = examples == 1.0 and isinstance(examples, float)
    if not plain and not isinstance(loaders, TensorLoader):
        if whole and batch_size is None:
            return loaders
        raise DataError(
            f"'federation.server_evaluation' cannot divide a {type(loaders).__name__}. Let 'val_dataloader' return one "
            "DataLoader over a map-style dataset in order, or remove 'examples' and 'batch_size'."
        )
    size = loaders.num_examples if isinstance(loaders, TensorLoader) else len(loaders.dataset)
    chosen = torch.arange(size) if isinstance(loaders, DataLoader) or loaders.indices is None else loaders.indices
    if not whole:
        known = TensorDataset(*loaders.tensors) if isinstance(loaders, TensorLoader) else loaders.dataset
        count = min(size, examples if isinstance(examples, int) else max(1, round(examples * size)))
        part, counts = Partition.of_parts([chosen]), torch.tensor([count])
        chosen = hold_out(part, counts, labels_at_hand(known), generator(seed, "server evaluation"))[1][0]
    own = batch_size or loaders.batch_size
    if isinstance(loaders, TensorLoader):
        return TensorLoader(loaders.tensors, own, None if whole and loaders.indices is None else chosen)
    if whole and batch_size is None and (loaders.drop_last or not loaders.num_workers):
        return loaders
    return evaluation_loader(loaders, loaders.dataset, chosen, own, resident_loader(loaders))


def fewest_examples(loaders: Any) -> int | None:
    """Return the number of examples of the smallest evaluation set that :func:`sharded` would split; None if there is none."""
    if isinstance(loaders, list | tuple | dict):
        each = [fewest_examples(loader) for loader in (loaders.values() if isinstance(loaders, dict) else loaders)]
        return min((size for size in each if size is not None), default=None)
    dataset = getattr(loaders, "dataset", None)
    if isinstance(loaders, TensorLoader):
        return loaders.num_examples
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
    if isinstance(getattr(loaders, "dataset", None), IterableDataset):
        return loaders  # a custom loader may divide itself
    size = loaders.num_examples if isinstance(loaders, TensorLoader) else len(getattr(loaders, "dataset", range(ranks)))
    if size < ranks:
        raise DataError(
            f"An evaluation set of {size} examples cannot be split over {ranks} ranks. Lower 'trainer.devices' or add examples."
        )
    if isinstance(loaders, TensorLoader):
        return loaders.shard(rank, ranks)
    if not isinstance(loaders, DataLoader) or loaders.batch_size is None:
        return loaders  # a custom loader may divide itself
    own = type(loaders.sampler) not in (RandomSampler, SequentialSampler)
    split = UnrepeatedDistributedSamplerWrapper if own else UnrepeatedDistributedSampler
    whole: Any = loaders.sampler if own else loaders.dataset
    sampler = split(whole, num_replicas=ranks, rank=rank, shuffle=False)
    return DataLoader(
        loaders.dataset,
        batch_size=loaders.batch_size,
        sampler=sampler,
        drop_last=loaders.drop_last,
        **_worker_settings(loaders),
    )


def _worker_settings(source: DataLoader[Any]) -> dict[str, Any]:
    return {
        "num_workers": source.num_workers,
        "collate_fn": source.collate_fn,
        "pin_memory": source.pin_memory,
        "timeout": source.timeout,
        "worker_init_fn": source.worker_init_fn,
        "multiprocessing_context": source.multiprocessing_context,
        "prefetch_factor": source.prefetch_factor,
    }
