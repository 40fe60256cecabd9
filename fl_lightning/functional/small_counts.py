"""Count categories: the most frequent one, and which sums tell how many rows a small one has."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fl_lightning.errors import DataError
from fl_lightning.functional.exact_moments import Moments, number_of_largest, number_of_ones


def told(counts: Sequence[int], least: int) -> list[bool]:
    """Return which counts of categories may be told, where everyone knows their total.

    Those below ``least`` are not told. If the total would give them away, the next larger ones are not told either: then the
    untold ones have ``least`` rows together, and are not all just below it.

    Args:
        counts: the number of rows of each category; every row has one.
        least: the fewest rows of a category that is told.
    """
    small = [count for count in counts if count < least] if least > 1 else []
    hidden, limit = sum(small), least if least > 1 else 0
    just_below = bool(small) and hidden == len(small) * (least - 1)
    for count in sorted(set(counts) - set(small)):
        if not (0 < hidden < least or just_below):
            break
        hidden, limit, just_below = hidden + count * counts.count(count), count + 1, False
    return [count >= limit for count in counts]


def without_small(moments: Moments, categories: Sequence[Sequence[int]], least: int) -> Moments:
    """Remove the moments of two-valued channels that would reveal fewer than ``least`` rows; their counts become 0.

    The two may be 0 and 1, or 1 and 2: with the number of rows, the sum tells how many have which.

    Args:
        moments: the moments.
        categories: the channels of each column that has one channel for each category.
        least: the fewest rows; 1 leaves out nothing.
    """
    hidden = set[int]()
    for group in categories if least > 1 else ():
        counts = [number_of_ones(moments, k) for k in group]
        rest = moments.counts[group[0]] - sum(counts)
        tells = told([*counts, *([rest] if rest > 0 else [])], least)
        hidden |= {k for k, tell in zip(group, tells, strict=False) if not tell}
    alone = set(range(len(moments.counts))) - {k for group in categories for k in group}
    for k in alone if least > 1 else ():
        count = number_of_largest(moments, k)
        if count is not None and not all(told([count, moments.counts[k] - count], least)):
            hidden.add(k)
    return without_channels(moments, hidden)


def without_channels(moments: Moments, hidden: Collection[int]) -> Moments:
    """Return moments of which some channels count no numbers."""
    kept = [k not in hidden for k in range(len(moments.counts))]
    every = (moments.counts, moments.totals, moments.squares)
    counts, totals, squares = (tuple(n if keep else 0 for n, keep in zip(one, kept, strict=True)) for one in every)
    return Moments(counts, totals, squares)


def most_frequent(moments: Moments, group: Sequence[int], names: Sequence[str]) -> list[float]:
    """Return what a column's channels are for its most frequent category, the first of equal ones.

    Args:
        moments: the moments of all rows.
        group: the channels, one of 0 and 1 for each category; a single one is 1 for the second category.
        names: the names of all channels, for messages.

    Raises:
        DataError: if no category has been counted.
    """
    counts = [number_of_ones(moments, k) for k in group]
    if not any(moments.counts[k] for k in group):
        raise DataError(
            f"No client tells how many rows have {', '.join(names[k] for k in group[:20])}, so the most frequent category is "
            "not known. Choose another 'missing' in the schema of all, or ask the sites for a lower 'policy.min_rows'."
        )
    if len(group) == 1:
        return [float(2 * counts[0] > moments.counts[group[0]])]
    most = counts.index(max(counts))
    return [float(k == most) for k in range(len(group))]
