"""What a site allows, under five headings and one for its machine; a server cannot change it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from fl_lightning.errors import ConfigurationError, did_you_mean, require
from fl_lightning.flower.site.recipe import Recipe, default_classes
from fl_lightning.flower.wire.keys import read_public_key
from fl_lightning.messages import Part

_FAILURES = 3
"""The failed trainings of a federation that a site under masks bears, e.g. because a round diverged."""
LARGEST_POWER = 4.0
"""The largest power of a score by which a strategy may weigh a site that sends nothing but its part of a sum."""
DEFAULT = "default"
"""The entry of ``policy.code`` that stands for this package's classes, torch's losses and optimizers."""
METRIC = "metric/"
"""Before the name of a single figure in ``policy.tells``."""

FACTS = {
    "examples": "the numbers of its training, validation and test examples, and of those of each training",
    "examples/rounded": "the numbers of examples, rounded to multiples of 'min_rows'",
    "steps": "the number of steps of each training",
    "normalizer": "the sum of the coefficients of each training's gradients, which follows from steps and learning rate",
    "loss": "the mean loss of each training",
    "metrics": "all figures that the module logs in a training",
    "seconds": "how long each training took",
    "optimizer": "the optimizer's name and momentum",
    "label_counts": "once, the number of examples of each class",
    "statistics": "once, to a server that asks, the sums of its inputs and of their squares, by feature",
    "evaluation/training": "figures of models on its training examples, and of how many",
    "evaluation/validation": "figures of models on its validation examples, and of how many",
    "evaluation/test": "figures of models on its test examples, and of how many",
}
"""What may leave a site beside the update, by its name in ``policy.tells``, in words."""
_SIZES = ("examples", "examples/rounded", "steps")
_COVERED = {
    "noise": (*_SIZES, "normalizer", "optimizer"),
    "masks": (*_SIZES, "loss", "statistics", *(f"evaluation/{part}" for part in get_args(Part))),
}
"""What may leave in each form: beside noise, only sizes and what follows from the settings."""


def read_policy(given: Any) -> Any:
    """Return the settings of a policy without ``update: plain``, which is the default form.

    Raises:
        ConfigurationError: for what is no setting of a policy, such as one of earlier versions.
    """
    names = [one.name for one in fields(Policy)]
    unknown = [given] if isinstance(given, str) else [name for name in given or () if name not in names]
    if unknown:
        raise ConfigurationError(
            f"'policy' has '{unknown[0]}', but its settings are {', '.join(names)}; see docs/site_policy.md."
            f"{did_you_mean(str(unknown[0]), names)}"
        )
    if not isinstance(given, dict) or "update" not in given:
        return given
    form = given["update"]
    if form == "plain":
        return {name: value for name, value in given.items() if name != "update"}
    known = isinstance(form, dict) and form and form.keys() <= {"noise", "masks"} and all(form.values())
    require(bool(known), "policy.update", "plain, or have the settings of noise, of masks or of both", form)
    return given


@dataclass(frozen=True)
class Budget:
    """Limit the privacy that a site spends on its data, over all federations.

    Args:
        data: the name of the data in the account, which the site's staff choose. New rows keep it: their persons have spent
            what the others have, at most.
        account: the file of the account, outside of the folders of sites, so that every site on the same data finds it. It must
            exist: an empty one begins an account.
        max_epsilon: the largest epsilon of all releases together, > 0.
        delta: the delta at which epsilon is computed, in (0, 1).
        protects: what epsilon is counted for: ``persons`` or ``rows``, by noise in each step (``federation.local.privacy``), or
            the whole ``site``, by local ``ClientPrivacy``.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    data: str
    account: str
    max_epsilon: float
    delta: float = 1e-6
    protects: Literal["persons", "rows", "site"] = "persons"

    def __post_init__(self) -> None:
        require(bool(self.data.strip()), "policy.update.noise.budget.data", "a name", self.data)
        require(self.max_epsilon > 0, "policy.update.noise.budget.max_epsilon", "above 0", self.max_epsilon)
        require(0 < self.delta < 1, "policy.update.noise.budget.delta", "above 0 and below 1", self.delta)


@dataclass(frozen=True)
class Noise:
    """Require noise of differential privacy at the client: ``ClientPrivacy`` with local noise, or ``federation.local.privacy``.

    The site then also refuses settings, modules and orders by which more would leave it than this noise covers, and no loss,
    metric, score or count of classes leaves.

    Args:
        least: the least noise multiplier, > 0.
        budget: the privacy that the site may spend over all federations; null counts nothing.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    least: float
    budget: Budget | None = None

    def __post_init__(self) -> None:
        require(self.least > 0, "policy.update.noise.least", "above 0", self.least)


@dataclass(frozen=True)
class Masks:
    """Require that the server learns nothing but sums over sites (``federation.secure_aggregation``).

    Args:
        peers: the folder of the public keys of all sites whose updates may be in a sum with this site's, one file ``NAME.pub``
            for each, which the sites have exchanged without the server, because it could invent sites otherwise.
        least: the fewest sites of a sum that the site takes part in, >= 2. With two, each learns the other's update.
        lost: how many sites may be missing from later sums, over all federations on this site's data, >= 0. A server that
            trains with tiny steps can subtract such sums, and so compute the updates of the missing sites. With 0, all sums
            are over the same sites: if one is lost, the run ends, and resumes when it is back.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    peers: str
    least: int = 3
    lost: int = 0

    def __post_init__(self) -> None:
        require(self.least >= 2, "policy.update.masks.least", "2 or above", self.least)
        require(self.lost >= 0, "policy.update.masks.lost", "0 or above", self.lost)


@dataclass(frozen=True)
class Form:
    """In which form the update leaves: plain without noise and masks.

    Args:
        noise: the noise that it has at least; null for none.
        masks: with whose updates it is added before the server can read it; null for none.
    """

    noise: Noise | None = None
    masks: Masks | None = None


@dataclass(frozen=True)
class Machine:
    """What a server may use of this machine.

    Args:
        trainings: how many models the site trains for servers, over all federations, >= 1. Rounds that a server repeats after a
            restart count again.
        hours: the most hours of a training, checked between steps, > 0.
        memory: the largest accepted message or model in GiB, > 0.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    trainings: int = 10_000
    hours: float = 6.0
    memory: float = 4.0

    def __post_init__(self) -> None:
        require(self.trainings >= 1, "policy.machine.trainings", "1 or above", self.trainings)
        require(self.hours > 0, "policy.machine.hours", "above 0", self.hours)
        require(self.memory > 0, "policy.machine.memory", "above 0, in GiB", self.memory)


@dataclass(frozen=True)
class Policy:
    """Answer five questions about what a server may have a site do, and what it learns.

    Args:
        federations: who may order? The number of federations in which the site takes part without being asked, >= 0, or
            ``any``. The site's staff agrees to a further one, or to other settings in a known one, with ``fl-lightning site
            approve``.
        update: in which form does the update leave? ``plain``: the server reads the model that the site trained, from which
            rows can be reconstructed; ``noise``; ``masks``; or both.
        tells: what else leaves? The names of :data:`FACTS`, and ``metric/NAME`` for a figure that the module logs; this list,
            and nothing else. Null for what FedAvg needs, and the loss: ``examples``, ``steps`` and ``loss`` of a plain update,
            ``examples`` and ``steps`` with noise, and ``loss`` under masks, where it leaves in a sum over sites only, as the
            numbers do by which a strategy weighs.
        answers: how many models the site evaluates for servers, over all federations, >= 1; each metric of ``fl-lightning
            evaluate`` counts. Each tells a figure of the same rows, and those of many crafted models can tell single rows.
        digits: the significant digits of figures that leave, >= 1; null for all.
        min_rows: of how many rows, or persons if the data name them, at least? The fewest behind an update, a count, a sum over
            a feature or an evaluation, >= 1. A smaller part is not evaluated and not told; a training that would read fewer is
            refused.
        code: which classes may a server name? Their dotted paths; ``default`` for this package's, and torch's losses and
            optimizers.
        machine: what a server may use of this machine.

    Raises:
        ConfigurationError: for a value outside its range, or a fact that does not leave in this form.
    """

    federations: int | Literal["any"] = 1
    update: Form = field(default_factory=Form)
    tells: list[str] | None = None
    answers: int = 10_000
    digits: int | None = None
    min_rows: int = 10
    code: list[str] = field(default_factory=lambda: [DEFAULT])
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        agreed = self.federations == "any" or (isinstance(self.federations, int) and self.federations >= 0)
        require(agreed, "policy.federations", "any, or a number of 0 or above", self.federations)
        require(self.digits is None or self.digits >= 1, "policy.digits", "1 or above, or null", self.digits)
        require(self.answers >= 1, "policy.answers", "1 or above", self.answers)
        require(self.min_rows >= 1, "policy.min_rows", "1 or above", self.min_rows)
        for fact in self.told:
            if fact not in FACTS and not fact.startswith(METRIC):
                known = f"{', '.join(FACTS)}, {METRIC}NAME"
                raise ConfigurationError(f"'policy.tells' has '{fact}', but must be of {known}.{did_you_mean(fact, FACTS)}")
            if form := self.hides(fact):
                raise ConfigurationError(
                    f"'policy.tells' has '{fact}', which would leave without the {form} that 'policy.update' requires. "
                    f"Remove it: with {form} may leave {', '.join(_COVERED[form])}."
                )

    def hides(self, fact: str) -> str:
        """Return the form, ``noise`` or ``masks``, with which a fact never leaves the site; empty if the staff may allow it."""
        return next((form for form, left in _COVERED.items() if getattr(self.update, form) and fact not in left), "")

    @property
    def least_noise(self) -> float:
        """Return the least noise multiplier; 0 needs no noise."""
        return 0.0 if self.update.noise is None else self.update.noise.least

    @property
    def budget(self) -> Budget | None:
        """Return the privacy that the site may spend."""
        return None if self.update.noise is None else self.update.noise.budget

    @property
    def told(self) -> frozenset[str]:
        """Return the facts that leave beside the update."""
        if self.tells is not None:
            return frozenset(self.tells)
        sizes = set() if self.update.masks is not None else {"examples", "steps"}
        return frozenset(sizes if self.update.noise is not None else {*sizes, "loss"})

    @property
    def recipe(self) -> Recipe:
        """Return what builds the classes that a server may name, by an exact list of dotted paths."""
        named = frozenset(self.code) - {DEFAULT}
        return Recipe(named | default_classes() if DEFAULT in self.code else named)

    @property
    def most_failures(self) -> int | None:
        """Return after how many failed trainings a federation waits for the staff; None if failures do not matter.

        Whether a training fails may depend on single rows, and neither noise nor masks cover that.
        """
        return 1 if self.update.noise is not None else _FAILURES if self.update.masks is not None else None


def most_threads() -> int:
    """Return the most threads that a server may set: the number of cores that this process may use."""
    here = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(here(0)) if here is not None else os.cpu_count() or 1


def read_peers(policy: Policy) -> dict[str, bytes]:
    """Return the public keys in the folder of ``Masks.peers`` by the names of their files, which are those of the sites.

    Raises:
        ConfigurationError: if the folder does not exist, has none, or a file is no public key of a site.
    """
    if policy.update.masks is None:
        return {}
    peers = policy.update.masks.peers
    files = sorted(Path(peers).glob("*.pub"))
    if not files:
        raise ConfigurationError(
            f"'policy.update.masks.peers' is '{peers}', which is no folder with files NAME.pub. Put the public keys there that "
            "the other sites have given you, each under the name of its site."
        )
    return {file.stem: read_public_key(file) for file in files}
