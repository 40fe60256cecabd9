"""Look up the private names of other packages when they are used, and say what changes where a release lacks one.

A package may rename or change a private name in any release. So each is looked up at its use, never when a module of
fl_lightning is imported. Where it is missing, a public and slower way takes its place, with one warning. If no public way
exists, only the feature that needs the name is refused.
"""

from __future__ import annotations

import platform
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import Any, NoReturn, TypeVar

from fl_lightning.errors import VersionError

T = TypeVar("T")


class _Missing:
    """Stand for a name that does not exist."""


MISSING = _Missing()
TESTED = {
    "lightning": ("2.6", "2.6"),
    "torch": ("2.7", "2.15"),
    "torchmetrics": ("1.7", "1.9"),
    "jsonargparse": ("4.52", "4.53"),
    "wandb": ("0.31", "0.31"),
    "Python": ("3.10", "3.13"),
}
"""The lowest and the highest minor release that the tests ran with. pip accepts all up to the next major one."""
NAMES: list[Private] = []
"""All private names that imported modules of this folder use."""
_told: set[str] = set()


@dataclass(frozen=True)
class Private:
    """Describe a private name of another package.

    Attributes:
        package: the package's name at the package index, or Python.
        owner: the dotted path of the module or class that has the name.
        name: the name; with dots for an attribute of an attribute.
        instead: what fl_lightning does without it, after 'so fl_lightning'; if empty, its feature is refused.
        path: the dotted path of the name.
        read: returns what has the name, given its owner.
    """

    package: str
    owner: str
    name: str
    instead: str = ""
    path: str = field(init=False)
    read: Callable[[Any], Any] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", f"{self.owner}.{self.name}")
        object.__setattr__(self, "read", attrgetter(self.name))
        NAMES.append(self)

    def look_up(self, owner: Any = MISSING) -> Any:
        """Return what has the name, or ``MISSING``; tell nothing.

        Args:
            owner: the object that has the name; by default, what the dotted path of the owner means.
        """
        try:
            return self.read(_imported(self.owner) if owner is MISSING else owner)
        except (ImportError, AttributeError):
            return MISSING

    def get(self, default: T, owner: Any = MISSING) -> T:
        """Return what has the name; the default, after one warning, if nothing has it.

        Args:
            default: what takes its place.
            owner: as for :meth:`look_up`.
        """
        try:  # not in a call of 'look_up': a client's turn asks a hundred times
            value: T = self.read(_imported(self.owner) if owner is MISSING else owner)
        except (ImportError, AttributeError):
            self.tell()
            return default
        return value

    def exists(self, owner: Any = MISSING) -> bool:
        """Return whether something has the name; tell once if nothing has it."""
        return self.get(MISSING, owner) is not MISSING

    def require(self, feature: str, owner: Any = MISSING) -> Any:
        """Return what has the name.

        Args:
            feature: the beginning of the message if nothing has it, such as 'Tuning the learning rate'.
            owner: as for :meth:`look_up`.

        Raises:
            VersionError: if nothing has it.
        """
        try:  # as in 'get': in each step
            return self.read(_imported(self.owner) if owner is MISSING else owner)
        except (ImportError, AttributeError):
            self.refuse(feature)

    def refuse(self, feature: str) -> NoReturn:
        """Refuse a feature that cannot do without the name.

        Raises:
            VersionError: always.
        """
        raise VersionError(
            f"{feature} needs '{self.path}', which {self.package} {installed(self.package)} does not have. Install "
            f"{known_releases(self.package) or f'an earlier release of {self.package}'}, or a newer fl_lightning."
        )

    def tell(self) -> None:
        """Warn that the name is missing, once in this process."""
        if self.path not in _told:
            _told.add(self.path)
            known = known_releases(self.package)
            warnings.warn(
                f"{self.package} {installed(self.package)} has no '{self.path}', so fl_lightning {self.instead}."
                f"{f' It was tested with {known}.' if known else ''}",
                stacklevel=2,
            )


@cache
def _imported(path: str) -> Any:
    """Return the module or the class with a dotted path."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        if not module:
            raise
        return getattr(import_module(module), name)


def installed(package: str) -> str:
    """Return the installed version of a package."""
    from importlib.metadata import PackageNotFoundError, version  # needed for a message only

    if package == "Python":
        return platform.python_version()
    try:
        return version(package)
    except PackageNotFoundError:
        return "(version unknown)"


def known_releases(package: str) -> str:
    """Return a package with the minor releases that fl_lightning was tested with; empty for an unknown one."""
    lowest, highest = TESTED.get(package, ("", ""))
    return f"{package} {lowest}{f' to {highest}' if highest != lowest else ''}" if lowest else ""


@cache
def is_tested(package: str) -> bool:
    """Return whether fl_lightning was tested with the installed minor release of a package; warn if it was not.

    Functions that take the place of the package's own ask this, since another release may have changed what they replace.
    """
    minor, (lowest, highest) = _minor(installed(package)), TESTED[package]
    if _minor(lowest) <= minor <= _minor(highest):
        return True
    warnings.warn(
        f"{package} {installed(package)} is not among the releases that this fl_lightning was tested with "
        f"({known_releases(package)}), so it leaves out what makes the steps of small clients faster. Results are the same.",
        stacklevel=2,
    )
    return False


def _minor(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:2])
