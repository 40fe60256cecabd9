"""Declare what a part of a federation needs and takes away, and what a resumed run may change of it.

Parts that do not work together are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import NamedTuple, Protocol

from fl_lightning.errors import ConfigurationError


class Capability(Enum):
    """Enumerate what parts of a federation rely on, unless another part takes it away."""

    DELIVERED_UPDATES = "each client's update passes through the server"
    WHOLE_ROUNDS = "the updates of a round belong to the same model"
    OPEN_CHANGES = "clients' exact changes may be read before they are sent"
    GLOBAL_STARTS = "no other part gives a client a complete model of its own"
    SINGLE_UPDATES = "the server sees each client's update"
    SINGLE_FIGURES = "the server sees each client's figures"
    COMPLETE_MODEL = "the server's model is complete"
    SERVED_MODELS = "clients start from models that come from the server"
    NEAR_STATE = "what clients keep is where the server is"
    OPEN_HOLDINGS = "what clients keep may be read as it is"
    FIRST_STARTS = "clients that have not trained yet begin with all of the first model"
    EVERY_CLIENT = "every client of a cohort delivers, and cohorts may be all clients"
    FULL_DRAWS = "cohorts are drawn from all clients"
    WAITING_CLIENTS = "clients may wait for each other within a round"
    OWN_PACE = "a round waits for no client"
    COHORTS = "each round draws a cohort, and waits for it"
    FIXED_TENSORS = "training changes no tensor that has no gradient"
    HELD_PARTS = "clients hold parts of the model"


_PROVIDED = (Capability.HELD_PARTS,)
"""Capabilities that are not there unless a part provides them."""


@dataclass(frozen=True)
class Need:
    """State that a part relies on a capability.

    Attributes:
        capability: what it relies on.
        because: the part and its reason, as the first half of a sentence.
        remedy: what the user can do instead, as an order without its full stop.
    """

    capability: Capability
    because: str
    remedy: str


@dataclass(frozen=True)
class Removal:
    """State that a part takes a capability away from the others.

    Attributes:
        capability: what it takes away.
        because: the part and its reason, as the second half of a sentence, after 'but'.
        remedy: what the user can do instead, as an order in lower case.
    """

    capability: Capability
    because: str
    remedy: str


class Part(Protocol):
    """A part of a federation, such as a strategy, which says what it needs and what it takes away."""

    def needs(self) -> Iterable[Need]:
        """Return what the part needs of the others."""

    def removes(self) -> Iterable[Removal]:
        """Return what the part takes away from the others."""

    def provides(self) -> Iterable[Capability]:
        """Return what is not there without the part."""


class Unassuming:
    """A part that works with any other, unless a subclass says otherwise."""

    def needs(self) -> Iterable[Need]:
        """Return what the part needs of the others."""
        return ()

    def removes(self) -> Iterable[Removal]:
        """Return what the part takes away from the others."""
        return ()

    def provides(self) -> Iterable[Capability]:
        """Return what is not there without the part."""
        return ()


def removed_by(parts: Iterable[Part]) -> frozenset[Capability]:
    """Return the capabilities that the parts take away."""
    return frozenset(removal.capability for part in parts for removal in part.removes())


def removals_of(parts: Iterable[Part], capability: Capability) -> list[Removal]:
    """Return how parts take a capability away."""
    return [removal for part in parts for removal in part.removes() if removal.capability is capability]


def need_of(parts: Iterable[Part], capability: Capability) -> Need | None:
    """Return how one of the parts needs a capability; None if none does."""
    return next((need for part in parts for need in part.needs() if need.capability is capability), None)


def check_parts(parts: Iterable[Part]) -> None:
    """Refuse parts that need what another part takes away.

    Raises:
        ConfigurationError: naming both parts, and what to change.
    """
    everyone = list(parts)
    provided = {capability for part in everyone for capability in part.provides()}
    for need in (need for part in everyone for need in part.needs()):
        if need.capability in _PROVIDED and need.capability not in provided:
            raise ConfigurationError(f"{need.because}. {need.remedy}.")
        check_need(need, everyone)


def check_need(need: Need, parts: Iterable[Part]) -> None:
    """Refuse a need that one of the parts makes impossible.

    Raises:
        ConfigurationError: naming both parts, and what to change.
    """
    for removal in removals_of(parts, need.capability):
        raise ConfigurationError(f"{need.because}, but {removal.because}. {need.remedy}, or {removal.remedy}.")


class ResumeRule(NamedTuple):
    """List the arguments of a class that a resumed run must keep or may change; ``*`` stands for all that are not named.

    A class of this package declares it as its attribute ``on_resume``. All other arguments change the result, so a resumed run
    has the same, unless ``federation.checkpoints.resume_changed`` is set.

    Args:
        stays: arguments that must not change, because a checkpoint's state depends on them; separated by spaces.
        free: arguments that change no result, or whose effect is compared directly.
    """

    stays: str = ""
    free: str = ""


def rule_of(kind: type | str, argument: str) -> str | None:
    """Return whether a resumed run may change an argument: 'stays' or 'free'; None if only on purpose.

    Args:
        kind: the class, or its dotted path. Only classes of this package say it by their path.
        argument: the argument of its constructor.
    """
    if isinstance(kind, str):
        module, _, name = kind.rpartition(".")
        kind = getattr(import_module(module), name) if module.startswith("fl_lightning.") else object
    rules: ResumeRule = getattr(kind, "on_resume", ResumeRule())
    named = {name: rule for rule in ("stays", "free") for name in getattr(rules, rule).split()}
    return named.get(argument, named.get("*"))
