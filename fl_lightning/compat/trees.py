"""Nested batches as lists of leaves. torch.func is public, but torch's functions for the trees that vmap takes are not."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from fl_lightning.compat.private import Private

__all__ = ["TreeSpec", "tree_flatten", "tree_map", "tree_unflatten"]

_INSTEAD = "takes apart only lists, tuples, deques and dictionaries, in Python"
_FLATTEN, _UNFLATTEN, _MAP = (
    Private("torch", "torch.utils._pytree", name, _INSTEAD) for name in ("tree_flatten", "tree_unflatten", "tree_map")
)

TreeSpec = Any
"""The structure of a tree, without its leaves; equal for trees that differ in their leaves only."""


def tree_flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Return the leaves of a tree, and its structure."""
    found: tuple[list[Any], TreeSpec] = (_FLATTEN.get(_flattened) if _UNFLATTEN.exists() else _flattened)(tree)
    return found


def tree_unflatten(leaves: Sequence[Any], spec: TreeSpec) -> Any:
    """Return a tree with a structure that :func:`tree_flatten` returned."""
    if isinstance(spec, _Spec):
        return spec.build(iter(leaves))
    return _UNFLATTEN.get(_no_tree)(leaves, spec)


def _no_tree(leaves: Sequence[Any], spec: TreeSpec) -> Any:
    raise TypeError(f"{spec} is not the structure of a tree.")


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of the same structure with the values of a function at its leaves."""
    return _MAP.get(_mapped)(function, tree)


def _flattened(tree: Any) -> tuple[list[Any], TreeSpec]:
    leaves: list[Any] = []
    return leaves, _Spec(tree, leaves)


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    leaves, spec = _flattened(tree)
    return spec.build(map(function, leaves))


class _Spec:
    """Hold the structure of a tree.

    Args:
        tree: the tree.
        leaves: the list to which its leaves are added.
    """

    def __init__(self, tree: Any, leaves: list[Any]) -> None:
        self.kind: Any = type(tree)
        self.extra: Any = None
        named = isinstance(tree, tuple) and hasattr(tree, "_fields")
        if self.kind in (dict, OrderedDict, defaultdict):
            self.extra = (list(tree), getattr(tree, "default_factory", None))
            items = list(tree.values())
        elif self.kind in (list, tuple, deque) or named:
            self.extra = getattr(tree, "maxlen", None)
            items = list(tree)
        else:
            self.kind, items = None, []
            leaves.append(tree)
        self.parts = [_Spec(item, leaves) for item in items]

    def build(self, leaves: Any) -> Any:
        """Return a tree of this structure, with the next leaves of an iterator."""
        if self.kind is None:
            return next(leaves)
        items = [part.build(leaves) for part in self.parts]
        if self.kind in (dict, OrderedDict, defaultdict):
            keys, factory = self.extra
            pairs = dict(zip(keys, items, strict=True))
            return defaultdict(factory, pairs) if self.kind is defaultdict else self.kind(pairs)
        if self.kind is deque:
            return deque(items, maxlen=self.extra)
        return self.kind(items) if self.kind in (list, tuple) else self.kind(*items)

    def __eq__(self, other: object) -> bool:
        mine = (self.kind, self.extra, self.parts)
        return isinstance(other, _Spec) and mine == (other.kind, other.extra, other.parts)

    def __repr__(self) -> str:
        return "*" if self.kind is None else f"{self.kind.__name__}({self.extra}, {self.parts})"

    __hash__ = None  # type: ignore[assignment]
