"""Parts that are held out of clients' examples: sizes, proportions, chance."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_labels import clients_of, few_labels, mixed, seeds, table_of
from scipy import stats

from fl_lightning import Partition
from fl_lightning.functional.splitting import class_balanced, hold_out


@st.composite
def holdings(draw):
    """Clients, some without any example, examples without a client, and how many of each client's to take."""
    clients = draw(clients_of)
    pairs = draw(st.lists(st.tuples(st.integers(-1, clients - 1), st.integers(0, 4)), min_size=1, max_size=80))
    parts = [torch.tensor([i for i, (o, _) in enumerate(pairs) if o == k], dtype=torch.int64) for k in range(clients)]
    sizes = [draw(st.integers(0, len(part))) for part in parts]
    return parts, torch.tensor(sizes), torch.tensor([label for _, label in pairs]), draw(seeds)


@given(holdings(), st.booleans())
def test_what_is_held_out_has_the_classes_proportions(case, with_labels):
    parts, sizes, labels, seed = case
    names = tuple(f"client {k}" for k in range(len(parts)))
    given_labels = labels if with_labels else None
    split_ = hold_out(Partition.of_parts(parts, names), sizes, given_labels, torch.Generator().manual_seed(seed))
    assert [part.names for part in split_] == [names, names]
    rest, taken = ([part.tolist() for part in half] for half in split_)
    assert [len(part) for part in taken] == sizes.tolist()
    for k, part in enumerate(parts):
        assert rest[k] == sorted(rest[k])
        assert taken[k] == sorted(taken[k])
        assert sorted(rest[k] + taken[k]) == part.tolist()
        if not with_labels or not len(part):
            continue
        up, down = [], []
        for label in set(labels[part].tolist()):
            quota = Fraction(int(sizes[k]) * int((labels[part] == label).sum()), len(part))
            extra = int((labels[taken[k]] == label).sum()) - quota.numerator // quota.denominator
            assert extra in ((0, 1) if quota.denominator > 1 else (0,))
            (up if extra else down).append(quota % 1)
        assert not up or not down or min(up) >= max(down)


def test_the_generator_alone_decides_what_is_held_out():
    """Ties between remainders, too: whatever torch's global generator is at."""
    parts, sizes = Partition.of_parts(list(torch.arange(64).split(8))), torch.full((8,), 3)
    labels, taken = torch.arange(64) % 4, []
    for state in (1, 2):
        torch.manual_seed(state)
        taken.append(hold_out(parts, sizes, labels, torch.Generator().manual_seed(5))[1].order.tolist())
    assert taken[0] == taken[1]


@pytest.mark.parametrize("scale", [10**12, 2**61])
def test_the_numbers_of_the_classes_do_not_matter(scale):
    """Whole numbers such as prices, far apart: as codes 0 .. C - 1, also where owners times numbers would overflow."""
    codes = mixed([20, 30, 10])
    parts, sizes = Partition.of_parts(list(torch.arange(60).split(15))), torch.tensor([3, 4, 5, 6])
    _, expected = hold_out(parts, sizes, codes, torch.Generator().manual_seed(3))
    _, taken = hold_out(parts, sizes, codes * scale - 7, torch.Generator().manual_seed(3))
    assert [part.tolist() for part in taken] == [part.tolist() for part in expected]


def test_equal_remainders_are_decided_by_chance():
    """Quotas of 1/3, 4/3 and 4/3: the third example is of any class alike."""
    labels = torch.tensor([0, 1, 1, 1, 1, 2, 2, 2, 2])
    who = Partition.of_parts([torch.arange(9)])
    rounded_up = [0, 0, 0]
    for seed in range(300):
        _, taken = hold_out(who, torch.tensor([3]), labels, torch.Generator().manual_seed(seed))
        extra = np.array(table_of(taken, labels, 3)[0]) - [0, 1, 1]
        rounded_up[int(extra.argmax())] += 1
    assert stats.chisquare(rounded_up).pvalue > 0.001


@pytest.mark.parametrize("labels", [None, torch.arange(4).repeat(5)])
def test_any_example_may_be_held_out(labels):
    who = Partition.of_parts([torch.arange(20)])
    takes = [hold_out(who, torch.tensor([8]), labels, torch.Generator().manual_seed(seed))[1].order for seed in range(400)]
    assert stats.chisquare(torch.cat(takes).bincount(minlength=20)).pvalue > 0.001


@given(few_labels, st.integers(0, 12), seeds)
def test_a_balanced_sample_has_as_many_of_each_class(labels, per_class, seed):
    chosen = class_balanced(labels, per_class, torch.Generator().manual_seed(seed))
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    wanted = [min(per_class, labels.tolist().count(label)) for label in range(7)]
    assert labels[chosen].bincount(minlength=7).tolist() == wanted


def test_any_example_may_be_in_a_balanced_sample():
    labels = torch.tensor([0, 1, 1, 0, 2, 1, 1, 0])
    takes = torch.cat([class_balanced(labels, 1, torch.Generator().manual_seed(seed)) for seed in range(600)])
    counts = takes.bincount(minlength=8)
    assert counts[4] == 600
    for label in (0, 1):
        assert stats.chisquare(counts[labels == label]).pvalue > 0.001
