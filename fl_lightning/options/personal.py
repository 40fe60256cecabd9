"""Select the parts of a module that each client keeps for itself, as FedBN and FedPer do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Literal

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import nn

from fl_lightning.core.capabilities import Capability, Need, Removal, ResumeRule
from fl_lightning.core.federation import Federation, ServerContext
from fl_lightning.core.option import OptionSettings, ServerHooks
from fl_lightning.errors import ConfigurationError, did_you_mean
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.model_parts import client_state, server_buffers
from fl_lightning.functional.model_state import ModelState
from fl_lightning.types import RoundResult
from fl_lightning.utilities.argument_types import checks_types

_NAME = "federation.personal"
_SHOWN = 6
"""The largest number of names in a message."""


@checks_types
@dataclass(frozen=True)
class PersonalPart:
    """Keep tensors on each client, where they are neither sent nor averaged.

    Args:
        modules: the class of submodules, such as ``torch.nn.BatchNorm2d``, with all their parameters, buffers and counters.
        names: a pattern of the names of parameters and buffers, in which ``*`` stands for any text. It matches the whole name
            or its end after a dot: ``head.*`` matches ``head.bias`` and ``network.head.bias``. The name of a submodule selects
            all of it.
        start: the part of a client that has not trained yet: that of the ``first`` model, or the ``mean`` of the clients'
            parts, weighted by examples, which only a simulation can form.

    Raises:
        ConfigurationError: unless exactly one of them is given, or if the class does not exist.
    """

    modules: str | type[nn.Module] | None = None
    names: str | None = None
    start: Literal["first", "mean"] = "first"
    on_resume = ResumeRule(stays="*")

    def __post_init__(self) -> None:
        if (self.modules is None) == (self.names is None):
            raise ConfigurationError(
                f"An entry of '{_NAME}' has modules {self.modules!r} and names {self.names!r}, but it needs exactly one of "
                "them. Write {modules: torch.nn.BatchNorm2d} or {names: 'head.*'}."
            )
        if isinstance(self.modules, type):
            object.__setattr__(self, "modules", f"{self.modules.__module__}.{self.modules.__qualname__}")
        if self.modules is not None:
            _find_class(str(self.modules))

    def select(self, module: nn.Module) -> set[str]:
        """Return the names of the parameters and buffers that match."""
        found: set[str] = set()
        kind = None if self.modules is None else _find_class(str(self.modules))
        for prefix, part in module.named_modules():
            if kind is not None and isinstance(part, kind):
                found |= {f"{prefix}.{name}".lstrip(".") for name in _tensors(part)}
        if self.names is not None:
            found |= {name for name in _tensors(module) if _matches(name, self.names)}
        return found


@dataclass(frozen=True)
class PersonalParts(OptionSettings):
    """Keep the parts that ``federation.personal`` selects at the clients.

    Args:
        parts: the parts.
    """

    parts: tuple[PersonalPart, ...] = ()

    setting = "personal"
    on_resume = ResumeRule(stays="*")

    @property
    def active(self) -> bool:
        """Return whether there are personal parts."""
        return bool(self.parts)

    @property
    def mean(self) -> list[PersonalPart]:
        """Return the parts that a new client starts with the mean of the other clients' parts."""
        return [part for part in self.parts if part.start == "mean"]

    def needs(self) -> Iterator[Need]:
        """Return what personal parts need: no complete models of the clients' own beside them, and what their mean needs."""
        yield Need(Capability.GLOBAL_STARTS, f"'{_NAME}' lets each client keep parts of its own", f"Remove '{_NAME}'")
        yield Need(Capability.SERVED_MODELS, f"'{_NAME}' lets each client keep parts of its own", f"Remove '{_NAME}'")
        if self.mean:
            mean, remedy = f"'start' in '{_NAME}' is 'mean', which", f"Set 'start' in '{_NAME}' to first"
            yield Need(Capability.NEAR_STATE, f"{mean} averages the personal parts at the server", remedy)
            passes = f"{mean} passes the mean of the clients' personal parts to the server and to new clients"
            yield Need(Capability.OPEN_HOLDINGS, passes, remedy)
            yield Need(Capability.WHOLE_ROUNDS, f"{mean} averages the personal parts after a whole round", remedy)

    def removes(self) -> Iterator[Removal]:
        """Return what personal parts take away: the server lacks them."""
        yield Removal(Capability.COMPLETE_MODEL, f"with '{_NAME}' the server's model is incomplete", f"remove '{_NAME}'")
        if self.mean:
            why = f"'start' in '{_NAME}' is 'mean', which lets new clients begin with other parts in each round"
            yield Removal(Capability.FIRST_STARTS, why, f"set 'start' in '{_NAME}' to first")

    def provides(self) -> tuple[Capability, ...]:
        """Return that clients hold parts."""
        return (Capability.HELD_PARTS,)

    def at_server(self, context: ServerContext) -> ServerHooks:
        """Return the hooks at the server."""
        return PersonalPartsAtServer(self, context)


def personal_names(module: nn.Module, parts: Sequence[PersonalPart]) -> tuple[str, ...]:
    """Return the names of the personal parameters and buffers of a module, in its order.

    Tied weights are personal if any of their names matches. Buffers that belong to the server, such as class weights, and those
    that the module names in ``client_state`` stay as they are.

    Raises:
        ConfigurationError: if an entry matches nothing; it suggests names that are near.
    """
    chosen: set[str] = set()
    for part in parts:
        found = part.select(module)
        if not found:
            raise ConfigurationError(_no_match(part, module))
        chosen |= found
    tensors = dict(module.named_parameters(remove_duplicate=False))
    tied = {id(tensors[name]) for name in chosen if name in tensors}
    chosen |= {name for name, tensor in tensors.items() if id(tensor) in tied}
    owned = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, part in module.named_modules()
        for name in (*server_buffers(part), *client_state(part))
    }
    return tuple(name for name in _tensors(module) if name in chosen - owned)


def _tensors(module: nn.Module) -> list[str]:
    parameters = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    return [*parameters, *(name for name, _ in module.named_buffers(remove_duplicate=False))]


def _matches(name: str, pattern: str) -> bool:
    parts = name.split(".")
    ends = [".".join(parts[start:]) for start in range(len(parts))]
    return any(fnmatchcase(end, pattern) or fnmatchcase(end, f"{pattern}.*") for end in ends)


def _find_class(path: str) -> type[nn.Module]:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"'{_NAME}' names the class '{path}', which cannot be imported ({error}). Set 'modules' to the dotted path of a "
            "class, such as torch.nn.BatchNorm2d."
        ) from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigurationError(
            f"'{_NAME}' names '{path}', which is not a torch.nn.Module. Set 'modules' to the dotted path of a class of layers, "
            "such as torch.nn.BatchNorm2d, or use 'names'."
        )
    return found


def _no_match(part: PersonalPart, module: nn.Module) -> str:
    if part.names is not None:
        names = _tensors(module)
        shorter = {".".join(name.split(".")[start:]) for name in names for start in range(name.count(".") + 1)}
        near = did_you_mean(part.names, {*names, *shorter, *(f"{name.rpartition('.')[0]}.*" for name in names)})
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        return (
            f"'{_NAME}' has the names '{part.names}', which match no parameter or buffer of {type(module).__name__}.{near} It "
            f"has: {shown}."
        )
    holders = [one for one in module.modules() if [*one.parameters(recurse=False), *one.buffers(recurse=False)]]
    short = {_public(f"{type(one).__module__}.{type(one).__qualname__}") for one in holders}
    return (
        f"'{_NAME}' has the modules {part.modules}, but {type(module).__name__} contains no such layer with parameters or "
        f"buffers.{did_you_mean(str(part.modules), short)} It has: {', '.join(sorted(short))}."
    )


def _public(path: str) -> str:
    """Return the path by which users know a layer of torch."""
    return f"torch.nn.{path.rpartition('.')[2]}" if path.startswith("torch.nn.modules.") else path


class PersonalPartsAtServer(ServerHooks):
    """Keep the personal parts at the clients.

    Args:
        personal: the settings of the parts.
        context: the fit.
    """

    def __init__(self, personal: PersonalParts, context: ServerContext) -> None:
        self._personal, self._context = personal, context
        self._averaged: tuple[str, ...] = ()

    def held(self, module: nn.Module) -> tuple[str, ...]:
        """Return the names of the personal parameters and buffers."""
        self._averaged = personal_names(module, self._personal.mean)
        return personal_names(module, self._personal.parts)

    def open(self, federation: Federation) -> None:
        """Print which tensors are personal, and how many bytes of each message this saves.

        Raises:
            ConfigurationError: if nothing is shared, but the clients need something to correct.
        """
        server, strategy = federation.server, federation.strategy
        own = server.held_tensors()
        if not own:
            return
        if not server.num_parameters and (strategy.client_rule() is not None or strategy.needs_held_parts):
            raise ConfigurationError(
                f"'federation.personal' matches every parameter, so {type(strategy).__name__} has nothing to correct. Match "
                "fewer parameters, or use FedAvg."
            )
        saved, sent = sum(tensor.nbytes for tensor in own.values()), server.nbytes(upward=True)
        names = ", ".join([*own][:_SHOWN]) + (f" and {len(own) - _SHOWN} more" if len(own) > _SHOWN else "")
        rank_zero_info(
            f"Each client keeps {len(own)} tensors for itself: {names}. A message carries {sent:,} bytes instead of "
            f"{sent + saved:,} in each direction ({100 * saved / (sent + saved):.1f} % saved)."
        )

    def after_round(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Let new clients begin with the mean of the others' parts, if they should."""
        if self._averaged:
            self._set_mean(federation.server)
        return {}

    def _set_mean(self, server: ModelState) -> None:
        """Set the server's tensors with which new clients begin to the mean over the clients that have trained.

        The mean is weighted by examples; of counters it is the maximum. Every rank holds the same state, and adds in client
        order.
        """
        own, total = server.held_tensors(), 0.0
        sums = {name: torch.zeros_like(to_float64(own[name])) for name in self._averaged}
        for client, size in enumerate(self._context.data.indices.sizes.tolist()):
            part = self._context.held(client)
            total += size if part else 0.0
            for name in self._averaged if part else ():
                tensor = part[name]
                mine = to_float64(tensor.to(own[name].device))
                if tensor.is_floating_point():
                    sums[name].add_(mine, alpha=size)
                else:
                    torch.maximum(sums[name], mine, out=sums[name])
        if total:
            server.set_held(own | {name: t / total if own[name].is_floating_point() else t for name, t in sums.items()})
