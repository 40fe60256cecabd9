"""What a site allows, which a server cannot change."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from fl_lightning.errors import ConfigurationError, did_you_mean, require
from fl_lightning.flower.site.recipe import default_classes, model_classes
from fl_lightning.messages import Part

_FAILURES = 3
"""The failed trainings of a federation that a site under masks bears, e.g. because a round diverged."""
LARGEST_POWER = 4.0
"""The largest power of a score by which a strategy may weigh a site that sends nothing but its part of a sum."""

PRESETS: dict[str, dict[str, Any]] = {
    "strict": {
        "federations": 0,
        "max_rounds": 200,
        "max_total_rounds": 1000,
        "max_evaluations": 400,
        "min_steps": 5,
        "min_batch": 8,
        "min_examples": 11,
        "min_rate": 1e-6,
        "max_rate": 1.0,
        "digits": 3,
        "examples": "rounded",
        "seconds": False,
        "optimizer": False,
    },
    "open": {
        "federations": "any",
        "min_examples": 1,
        "metrics": "any",
        "evaluations": ["training", "validation", "test"],
        "label_counts": True,
        "ranges": True,
        "statistics": True,
        "min_count": 1,
    },
}
"""What ``policy: strict`` and ``policy: open`` stand for."""


def with_preset(given: Any) -> Any:
    """Return the limits of a policy that names a preset: ``strict``, or ``{preset: strict, max_rounds: 50}``.

    Raises:
        ConfigurationError: for a preset that does not exist.
    """
    if given is None or (isinstance(given, dict) and "preset" not in given):
        return given
    name, more = (given["preset"], given) if isinstance(given, dict) else (given, {})
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigurationError(
            f"'policy' is the preset '{name}', but must be {' or '.join(PRESETS)}, or limits by name."
            f"{did_you_mean(str(name), PRESETS)}"
        )
    return PRESETS[name] | {limit: value for limit, value in more.items() if limit != "preset"}


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
        require(bool(self.data.strip()), "policy.budget.data", "a name", self.data)
        require(self.max_epsilon > 0, "policy.budget.max_epsilon", "above 0", self.max_epsilon)
        require(0 < self.delta < 1, "policy.budget.delta", "above 0 and below 1", self.delta)


@dataclass(frozen=True)
class Policy:
    """Limit what a server can have a site do, and what it learns.

    Args:
        classes: the dotted paths of classes that a server may name besides this package's, torch's losses and optimizers.
        default_classes: whether to accept those; false leaves only ``classes`` and ``models``.
        models: the dotted paths of the tasks and networks that a server may name; empty for those of this package.
        federations: the number of federations in which the site takes part without being asked, >= 0, or ``any``. The site's
            staff agrees to a further one, or to other settings in a known one, with ``fl-lightning site approve``.
        max_rounds: how many times the site trains for the server in one federation at most, >= 1: once per round, once per
            period on routes that have periods, or at its own pace in asynchronous rounds. Rounds that a server repeats after a
            restart count again.
        max_total_rounds: the same for all federations together, >= 1.
        max_evaluations: how many models the site evaluates for the server in one federation at most, >= 1, repeated ones
            included. Each tells a figure of the same rows, and many figures of crafted models can tell single rows. It is also
            how many questions of ``fl-lightning evaluate`` the site answers about one version of its data, over all
            federations; a repeated one counts once.
        max_epochs: the most local epochs of a turn, >= 1.
        max_seconds: the most seconds of a turn, checked between steps, > 0.
        max_threads: the most threads, >= 1; null for the number of this machine's cores.
        max_model: the size of the largest accepted model in MiB, > 0.
        min_steps: the fewest optimizer steps of a turn, >= 1. A model that leaves after one step on few rows can reveal them.
        min_batch: the fewest rows of a batch, >= 1; persons instead of rows if the data name persons.
        min_examples: the fewest rows, or persons if the data name them, behind an update, a count or an evaluation, >= 1. A
            smaller part is not evaluated and not told, and a training that would read fewer is refused.
        min_rate: the smallest learning rate of a step, >= 0.
        max_rate: the largest learning rate of a step, above ``min_rate``.
        min_noise: the least noise multiplier of differential privacy at the client, >= 0: of ``ClientPrivacy`` with local
            noise, or of ``federation.local.privacy``. The site then also refuses settings, modules and orders by which more
            would leave it than this noise covers, evaluates nothing, and sends no loss and no metric. 0 needs no noise.
        secure_aggregation: whether the site requires that the server learns nothing but sums over sites
            (``federation.secure_aggregation``), or allows other federations, too.
        peers: the folder of the public keys of all sites whose updates may be in a sum with this site's, one file ``NAME.pub``
            for each, which the sites have exchanged without the server. Null for none.
        min_cohort: the fewest sites of a sum that the site takes part in, >= 2. With two, each learns the other's update.
        max_lost: how many sites may be missing from later sums, over all federations on this site's data, >= 0. A server that
            trains with tiny steps can subtract such sums, and so compute the updates of the missing sites. With 0, all sums
            are over the same sites: if one is lost, the run ends, and resumes when it is back.
        budget: the privacy that the site may spend over all federations; it needs ``min_noise``.
        evaluations: the parts of the site's examples on which a server may have models evaluated: training, validation, test.
        metrics: the names of the figures of a training that may leave: of what the module logs, and ``train_loss``, the mean
            training loss; ``any`` for all.
        own_model: whether the complete model that the site keeps for itself (``federation.personal``, Ditto and others)
            ``stays``, or ``travels`` to a server that asks, which has other sites evaluate it. It follows this site's rows
            more closely than the model of all.
        digits: the significant digits of figures that leave, >= 1; null for all.
        examples: whether to tell numbers of examples ``exact``, or ``rounded`` to multiples of ``min_examples``, by which the
            server then weighs. Numbers of steps leave, too: they tell the size up to one batch. With ``secure_aggregation``
            required they may also be ``masked``: then neither leaves but in sums.
        seconds: whether to tell how long a training took.
        optimizer: whether to tell the optimizer's name and momentum.
        label_counts: whether to tell the server the number of examples of each class.
        ranges: whether to tell the server the range, mean and deviation of each feature, rounded to two digits, so that a site
            with another unit is noticed.
        statistics: whether to tell a server that asks the exact sums of the training inputs and of their squares, by feature,
            from which it takes the mean and deviation over all sites (``Standardized``). They are told once: not again after
            the data have changed, because the difference would tell about the new rows. With ``secure_aggregation`` required,
            they leave in a sum over sites only.
        statistics_epsilon: the privacy loss of a row that is replaced by another, through all sums of ``statistics``, > 0. They
            then get noise, and only columns with a range in the schema are told. Null tells exact sums.
        histograms: whether to tell a server that asks how many rows are in each of ten bins of a feature's range in the schema,
            also once, without counts below ``min_count`` and those from which they would follow. None leave with
            ``secure_aggregation`` required.
        schema: whose schema describes the tables of ``data.yaml`` that name none: with ``server``, the first one that a server
            offers. It reads columns that ``columns`` does not name by its own names, so the file should have no others.
        min_count: the fewest numbers of a feature over which the site tells a sum, >= 1. Features of a category with fewer rows
            are left out, and those from which its rows would follow. If the data name persons, so many times the rows of the
            person with the most; ``statistics_epsilon`` is then that of a person.
        largest_message: the largest accepted message in MiB, > 0.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    classes: list[str] = field(default_factory=list)
    default_classes: bool = True
    models: list[str] = field(default_factory=list)
    federations: int | Literal["any"] = 1
    max_rounds: int = 1000
    max_total_rounds: int = 10_000
    max_evaluations: int = 10_000
    max_epochs: int = 100
    max_seconds: float = 6 * 3600.0
    max_threads: int | None = None
    max_model: float = 2048.0
    min_steps: int = 1
    min_batch: int = 1
    min_examples: int = 10
    min_rate: float = 0.0
    max_rate: float = math.inf
    min_noise: float = 0.0
    secure_aggregation: Literal["required", "allowed"] = "allowed"
    peers: str | None = None
    min_cohort: int = 3
    max_lost: int = 0
    budget: Budget | None = None
    evaluations: list[Part] = field(default_factory=list)
    metrics: list[str] | Literal["any"] = field(default_factory=lambda: ["train_loss"])
    own_model: Literal["stays", "travels"] = "stays"
    digits: int | None = None
    examples: Literal["exact", "rounded", "masked"] = "exact"
    seconds: bool = True
    optimizer: bool = True
    label_counts: bool = False
    ranges: bool = False
    statistics: bool = False
    statistics_epsilon: float | None = None
    histograms: bool = False
    schema: Literal["own", "server"] = "own"
    min_count: int = 10
    largest_message: float = 4096.0

    def __post_init__(self) -> None:
        orders = ("max_rounds", "max_total_rounds", "max_evaluations", "max_epochs")
        for name in (*orders, "min_steps", "min_batch", "min_examples", "min_count"):
            require(getattr(self, name) >= 1, f"policy.{name}", "1 or above", getattr(self, name))
        for name, unit in (("max_seconds", "seconds"), ("max_model", "MiB"), ("largest_message", "MiB")):
            require(getattr(self, name) > 0, f"policy.{name}", f"above 0, in {unit}", getattr(self, name))
        agreed = self.federations == "any" or (isinstance(self.federations, int) and self.federations >= 0)
        require(agreed, "policy.federations", "any, or a number of 0 or above", self.federations)
        require(
            self.max_threads is None or self.max_threads >= 1, "policy.max_threads", "1 or above, or null", self.max_threads
        )
        require(self.digits is None or self.digits >= 1, "policy.digits", "1 or above, or null", self.digits)
        require(self.min_rate >= 0, "policy.min_rate", "0 or above", self.min_rate)
        require(self.max_rate > self.min_rate, "policy.max_rate", f"above 'min_rate' ({self.min_rate})", self.max_rate)
        noise = self.statistics_epsilon
        require(noise is None or noise > 0, "policy.statistics_epsilon", "above 0, or null", noise)
        need = "false with 'policy.statistics_epsilon', because the counts have no noise"
        require(noise is None or not self.histograms, "policy.histograms", need, self.histograms)
        require(self.min_cohort >= 2, "policy.min_cohort", "2 or above", self.min_cohort)
        require(self.max_lost >= 0, "policy.max_lost", "0 or above", self.max_lost)
        required = self.secure_aggregation == "required"
        need = "a folder with 'policy.secure_aggregation': required, because a server could invent sites otherwise"
        require(not required or self.peers is not None, "policy.peers", need, self.peers)
        need = "exact or rounded, unless 'policy.secure_aggregation' is required, which masks them"
        require(required or self.examples != "masked", "policy.examples", need, self.examples)
        require(self.min_noise >= 0, "policy.min_noise", "0 or above", self.min_noise)
        covered = self.budget is None or self.min_noise > 0
        need = "above 0 with 'policy.budget', because figures without noise leave otherwise, which no epsilon counts"
        require(covered, "policy.min_noise", need, self.min_noise)
        known = get_args(Part)
        require(all(p in known for p in self.evaluations), "policy.evaluations", f"parts of {known}", self.evaluations)

    @property
    def accepted_classes(self) -> frozenset[str]:
        """Return the exact list of dotted paths."""
        found = default_classes() if self.default_classes else frozenset[str]()
        if self.models:
            found = found - model_classes() | frozenset(self.models)
        return found | frozenset(self.classes)

    @property
    def hides_errors(self) -> bool:
        """Return whether all errors are told alike, because their class may depend on rows of this site alone."""
        return self.min_noise > 0 or self.secure_aggregation == "required"

    @property
    def most_failures(self) -> int | None:
        """Return after how many failed trainings a federation waits for the staff; None if failures do not matter.

        Whether a training fails may depend on single rows, and neither noise nor masks cover that.
        """
        return 1 if self.min_noise > 0 else _FAILURES if self.secure_aggregation == "required" else None

    @property
    def limits_rates(self) -> bool:
        """Return whether a learning rate can be outside the limits."""
        return self.min_rate > 0 or self.max_rate < math.inf

    @property
    def most_threads(self) -> int:
        """Return the most threads that a server may set."""
        return self.max_threads or os.cpu_count() or 1
