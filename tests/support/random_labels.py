"""Labels to split, and what a partition must hold whatever they are."""

import re

import numpy as np
import torch
from hypothesis import strategies as st

from fl_lightning import DataError

SETTING = re.compile(r"'data\.partitioner\.\w+'")
MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def mixed(counts):
    """Labels with so many examples of each class, in an order that never changes."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]


few_labels = st.lists(st.sampled_from([0, 1, 2, 5, 12, 19, 30]), min_size=1, max_size=7).filter(any).map(mixed)
clients_of = st.integers(1, 8)
seeds = st.integers(0, 2**31)
betas = st.sampled_from([0.05, 0.5, 5.0])


def table_of(partition, labels, num_classes):
    return [np.bincount(labels[part].numpy(), minlength=num_classes).tolist() for part in partition]


def split(partitioner, labels):
    """The partition, or None where the partitioner refuses and names a setting; drawn twice, whatever others draw."""
    try:
        partition = partitioner.partition(len(labels), labels)
    except DataError as error:
        if not SETTING.search(str(error)):
            raise
        return None
    torch.rand(3)
    np.random.rand(3)
    again = partitioner.partition(len(labels), labels)
    assert torch.equal(partition.order, again.order)
    assert torch.equal(partition.offsets, again.offsets)
    return partition


def assert_shared_out(partition, clients, everyone):
    parts = [part.tolist() for part in partition]
    assert len(parts) == len(partition) == clients
    assert all(parts)
    assert sorted(index for part in parts for index in part) == sorted(everyone)
