"""View a module's weights and buffers as flat vectors; :mod:`~fl_lightning.functional.model_slots` has their kinds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from fl_lightning.compat.torch import copy_to_each, parameters_of, parts_of, times_changed
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.model_parts import (
    declared_constant,
    extreme_buffers,
    is_tiny,
    never_averaged,
    trained_parts,
    widened,
)
from fl_lightning.functional.model_slots import Slot, find_slots, second_names
from fl_lightning.functional.recycling import large_empty
from fl_lightning.functional.spread import distance
from fl_lightning.functional.sums import Grid, grid_of_model
from fl_lightning.messages import ModelLayout
from fl_lightning.types import Snapshot


class ModelState:
    """View one module's tensors, found once and read many times.

    Tensors are looked up through their owner, so that a buffer replaced by user code is found.

    Raises:
        ConfigurationError: if parameters are not initialised, or trained ones complex.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._followed: ModelLayout | None = None
        # Buffers are unsent for their values at the start: later ones must not move a buffer to another kind.
        self.apart: dict[str, tuple[str, ...]] = {"moving": (), "held": (), "unsent": never_averaged(module)}
        """The names of the tensors that :meth:`set_apart` sets apart."""
        self._arrange()

    def _arrange(self) -> None:
        self._trained = trained_parts(self._module)
        self._slots = find_slots(self._module, **self.apart)
        self._second_names = second_names(self._slots)
        self._filled: ModelLayout | None = None
        self._layout: ModelLayout | None = None
        self._names: tuple[list[str], ...] | None = None

    def refresh(self) -> bool:
        """Re-check which parameters are frozen, and return whether that, and the length of :meth:`vector`, has changed."""
        if trained_parts(self._module) == self._trained:
            return False
        self._arrange()
        return True

    @property
    def layout(self) -> ModelLayout:
        """Return the current layout, for the copies of this module."""
        if self._layout is None:
            modes = {name: (part.training, getattr(part, "track_running_stats", None)) for name, part in self._parts()}
            trained = tuple(p.requires_grad for p in parameters_of(self._module).values())
            self._layout = ModelLayout(trained, modes, **self.apart)
        return self._layout

    def _parts(self) -> Iterator[tuple[str, nn.Module]]:
        yield from self._module.named_modules()

    def follow(self, layout: ModelLayout) -> None:
        """Freeze and unfreeze this copy's parameters as the server's are, and use the same modes and layout."""
        parts = parts_of(self._module)
        for parameter, trained in zip(parameters_of(self._module, parts).values(), layout.trained, strict=True):
            if parameter.requires_grad is not trained:
                parameter.requires_grad_(trained)
        for name, part in parts.items():
            training, tracks = layout.modes.get(name, (part.training, None))
            if part.training is not training:
                part.training = training
            if tracks is not None and getattr(part, "track_running_stats", tracks) != tracks:
                part.track_running_stats = tracks  # type: ignore[assignment]  # Lightning's finetuning switches it in BatchNorm
        if self._followed is layout:
            return
        self.apart = {"moving": layout.moving, "held": layout.held, "unsent": layout.unsent}
        self._arrange()
        self._followed = layout

    def names(self) -> tuple[list[str], list[str], list[str], list[str]]:
        """Return the names of parameters, averaged buffers, counters, and buffers that are not sent back."""
        parameters, floats, counters, local, *_ = self._all_names()
        return parameters, floats, counters, local

    def _all_names(self) -> tuple[list[str], ...]:
        if self._names is None:
            prefixes = {id(owner): f"{prefix}.".lstrip(".") for prefix, owner in self._parts()}
            self._names = tuple([prefixes[id(o)] + name for o, name in slots] for slots in self._slots.kinds)
        return self._names

    def tensors(self) -> dict[str, Tensor]:
        """Return every parameter and buffer that clients do not hold, by name: the tensors themselves, not copies."""
        return {name: getattr(*slot).detach() for name, slot in self._named_slots()}

    @staticmethod
    def _tensors(slots: list[Slot]) -> list[Tensor]:
        return [getattr(owner, name).detach() for owner, name in slots]

    def parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters that clients share, themselves, each once."""
        return [getattr(owner, name) for owner, name in self._slots.parameters]

    def _all(self) -> list[Tensor]:
        slots = [slot for kind in self._slots.kinds for slot in kind]
        return [getattr(owner, name) for owner, name in (*slots, *self._slots.held.values())]

    def ids(self) -> set[int]:
        """Return the ids of all parameters and buffers that this view finds."""
        return {id(tensor) for tensor in self._all()}

    def changes(self) -> tuple[tuple[int, float], ...]:
        """Return which tensors this view finds, and how often each was changed in place, except through ``.data``."""
        return tuple([(id(tensor), times_changed(tensor)) for tensor in self._all()])

    @torch.no_grad()
    def vector(self) -> Tensor:
        """Return a copy of parameters and averaged buffers, one float vector of shape (d,)."""
        tensors = [getattr(*slot) for slot in (*self._slots.parameters, *self._slots.floats)]
        if not tensors and self._slots.held:
            return torch.zeros(0, device=self.device)
        if not tensors:
            raise ConfigurationError(
                "The module has no trainable parameters, so there is nothing to federate. Add a network, or thaw parameters."
            )
        flat = [tensor.reshape(-1) for tensor in tensors]
        if len({tensor.dtype for tensor in flat}) > 1 or is_tiny(flat[0]):
            return torch.cat([widened(tensor) for tensor in flat])
        return torch.cat(flat, out=large_empty(sum(map(Tensor.numel, flat)), flat[0].dtype, flat[0].device))

    def counters(self) -> Tensor:
        """Return a copy of the integer and boolean buffers, int64, shape (c,)."""
        tensors = [t.reshape(-1).long() for t in self._tensors(self._slots.counters)]
        return torch.cat(tensors) if tensors else torch.empty(0, dtype=torch.int64, device=self.device)

    @property
    def device(self) -> torch.device:
        """Return the device of the first parameter."""
        first: list[Slot] = [*self._slots.parameters[:1], *self._slots.held.values()]
        return getattr(*first[0]).device if first else torch.device("cpu")

    @torch.no_grad()
    def copy_from(self, tensors: Mapping[str, Tensor], layout: ModelLayout) -> None:
        """Copy every parameter and buffer of another module of the same architecture.

        Args:
            tensors: the other's :meth:`tensors`.
            layout: the other's layout; as long as it is the same, constants are not copied again.
        """
        kinds = [*zip(self._all_names(), self._slots.kinds, strict=True)]
        constants = kinds.pop()
        self.take_shapes(tensors)
        if self._filled is not layout:
            kinds.append(constants)
            self._filled = layout
        for names, slots in kinds:
            if slots:
                copy_to_each([getattr(*slot) for slot in slots], [tensors[name] for name in names])

    def take_shapes(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace buffers that have another shape than another module's, since a forward pass may resize them.

        A tensor with two names becomes two tensors if the other module's differ.

        Args:
            tensors: the other's :meth:`tensors`.
        """
        for name, (owner, attribute), mine in self._resized(tensors, slice(1, 5)):
            if isinstance(getattr(owner, attribute), nn.Parameter):
                continue
            setattr(owner, attribute, tensors[name].detach().to(mine, copy=True))
        if self._second_names:
            names = {slot: name for name, slot in self._named_slots()}
            for second, first in self._second_names.items():
                if getattr(*second) is getattr(*first) and differs(tensors[names[second]], tensors[names[first]]):
                    setattr(*second, getattr(*second).clone())

    def resized(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the buffers that are sent back and have another shape than another module's, by name."""
        return {name: mine for name, _, mine in self._resized(tensors, slice(1, 3))}

    def _resized(self, tensors: Mapping[str, Tensor], kinds: slice) -> Iterator[tuple[str, Slot, Tensor]]:
        for name, slot in self._named_slots(kinds):
            mine = getattr(*slot)
            if mine.shape != tensors[name].shape:
                yield name, slot, mine

    def _named_slots(self, kinds: slice = slice(None)) -> Iterator[tuple[str, Slot]]:
        for names, slots in zip(self._all_names()[kinds], self._slots.kinds[kinds], strict=True):
            yield from zip(names, slots, strict=True)

    @torch.no_grad()
    def load(self, snapshot: Snapshot) -> None:
        """Load parameters, averaged buffers and counters; local and server-owned buffers stay unchanged."""
        slots = self._slots.parameters + self._slots.floats
        self._fill(slots, snapshot.vector)
        self._fill(self._slots.counters, snapshot.counters)
        if snapshot.moved:
            self._set(snapshot.moved)

    @torch.no_grad()
    def moved(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies of the frozen tensors that differ from another module's, by name.

        Args:
            tensors: the other's :meth:`tensors`.

        Raises:
            ConfigurationError: if a part that the module declares constant has changed, or a parameter that is not real.
        """
        found = changed_tensors(self._module, [*self._named_slots(slice(4, 6))], tensors)
        if found:
            self._filled = None  # constants, too, must be copied again
        return found

    @torch.no_grad()
    def set_moved(self, moved: Mapping[str, Tensor]) -> None:
        """Set frozen tensors that clients have changed, and copy them to the clients from now on."""
        self._set(moved)
        self.set_apart(moving=sorted({*self.apart["moving"], *moved}))

    def extremes(self) -> dict[str, str]:
        """Return the frozen buffers that take the minimum or maximum over clients, by name; see ``extreme_buffers``."""
        found = [(name, extreme_buffers(owner).get(attribute)) for name, (owner, attribute) in self._named_slots(slice(4, 5))]
        return {name: rule for name, rule in found if rule}

    def set_apart(
        self, moving: Iterable[str] | None = None, held: Iterable[str] | None = None, unsent: Iterable[str] | None = None
    ) -> None:
        """Set the names of tensors with a part of their own in the :attr:`layout`; None leaves them as they are.

        Args:
            moving: frozen tensors that clients have changed, which are copied to the clients in every round.
            held: parameters and buffers that are not in :meth:`vector`, because each client keeps its own.
            unsent: buffers that are not sent back because they were complex or not finite at the start of the run.
        """
        given = {"moving": moving, "held": held, "unsent": unsent}
        apart = self.apart | {kind: tuple(names) for kind, names in given.items() if names is not None}
        if apart != self.apart:
            self.apart = apart
            self._arrange()

    # ---------------------------------------------------------------- what each client keeps for itself

    def held_tensors(self) -> dict[str, Tensor]:
        """Return the held parameters, then the held buffers, by name: the tensors themselves, not copies."""
        return {name: getattr(owner, attribute).detach() for name, (owner, attribute) in self._slots.held.items()}

    def held_parameters(self) -> list[nn.Parameter]:
        """Return the held parameters themselves."""
        found = [getattr(owner, name) for owner, name in self._slots.held.values()]
        return [tensor for tensor in found if isinstance(tensor, nn.Parameter)]

    @torch.no_grad()
    def set_held(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the held parameters and buffers."""
        for name, own in self.held_tensors().items():
            own.copy_(tensors[name])

    def _set(self, moved: Mapping[str, Tensor]) -> None:
        self.take_shapes({**self.tensors(), **moved})
        own = self.tensors()
        for name, tensor in moved.items():
            own[name].copy_(tensor)

    def _fill(self, slots: list[Slot], source: Tensor) -> None:
        start = 0
        for slot in slots:
            tensor = getattr(*slot).detach()
            piece = source[start : start + tensor.numel()].view_as(tensor)
            if slot in self._second_names and differs(tensor, piece.to(tensor)):
                setattr(*slot, tensor := tensor.clone())
            tensor.copy_(piece)
            start += tensor.numel()

    @property
    def size(self) -> int:
        """Return d, the length of :meth:`vector`."""
        tensors: list[Tensor] = [getattr(*slot) for slot in (*self._slots.parameters, *self._slots.floats)]
        return sum(map(Tensor.numel, tensors))

    @property
    def num_parameters(self) -> int:
        """Return p: the first p entries of :meth:`vector` are parameters."""
        return sum(map(Tensor.numel, self.parameters()))

    def distance(self, vector: Tensor) -> float:
        """Return the L2 norm of the difference between these parameters and the first p entries of ``vector``, shape (d,)."""
        return distance([parameter.detach() for parameter in self.parameters()], vector)

    @torch.no_grad()
    def set_buffers(self, aggregate: Tensor, counters: Tensor) -> None:
        """Set averaged buffers from the tail of ``aggregate``, shape (d,), and integer ones from ``counters``, (c,)."""
        self._fill(self._slots.floats, aggregate[self.num_parameters :])
        self._fill(self._slots.counters, counters)

    def grid(self, largest: float | None) -> Grid | None:
        """Return the grid on which such models are summed with weights of about ``largest``; None if that is unknown."""
        return grid_of_model([parameter.detach() for parameter in self.parameters()], self.size, largest)

    def nbytes(self, *, upward: bool) -> int:
        """Return the bytes of a message in the tensors' own dtypes: frozen tensors excluded, upward also local buffers."""
        kinds = self._slots.kinds[:3] if upward else self._slots.kinds[:4]
        moving = [] if upward else [slot for name, slot in self._named_slots(slice(4, 6)) if name in self.apart["moving"]]
        sent = self._tensors([*moving, *(slot for slots in kinds for slot in slots)])
        return sum(t.numel() * t.element_size() for t in sent)


def changed_tensors(module: nn.Module, slots: Sequence[tuple[str, Slot]], before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of the frozen tensors that differ from those before training, by name.

    Args:
        module: the module that has been trained.
        slots: the frozen tensors that may have changed, with their names.
        before: the tensors before training, by name.

    Raises:
        ConfigurationError: if a part that the module declares constant has changed, or a parameter that is not real.
    """
    changed = [(name, owner, getattr(owner, attribute)) for name, (owner, attribute) in slots]
    changed = [(name, owner, tensor) for name, owner, tensor in changed if differs(tensor.detach(), before[name])]
    declared = declared_constant(module) if changed else set()
    for name, owner, tensor in changed:
        if id(owner) in declared:
            raise ConfigurationError(
                f"Training changed '{name}', which {type(module).__name__} declares constant. Remove its part "
                "from 'constant_parts', or do not change it."
            )
        if isinstance(tensor, nn.Parameter) and not tensor.is_floating_point():
            raise ConfigurationError(
                f"Training changed the frozen parameter '{name}' of {type(module).__name__}, which cannot be "
                f"averaged, since it is {tensor.dtype}. Make it a buffer, of which the federation takes the maximum "
                "over the clients, or do not change it."
            )
    return {name: tensor.detach().clone() for name, _, tensor in changed}


def differs(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of a model differ in shape or in a value; NaN equals NaN."""
    other = other.to(one.device)
    if one.shape != other.shape:
        return True
    if is_tiny(one):
        return not torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    return not (torch.equal(one, other) or (one.is_floating_point() and torch.allclose(one, other, 0, 0, equal_nan=True)))
