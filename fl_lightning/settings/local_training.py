"""How clients train between receiving the global model and sending their updates: the settings, and the place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from lightning.pytorch import Callback, Trainer

from fl_lightning.core import federation
from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.core.option import ClientHooks, OptionSettings, SitePlace
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.options.example_privacy import ExamplePrivacy
from fl_lightning.options.partial_work import PartialWork
from fl_lightning.rules.base import ClientRule
from fl_lightning.settings.server import require_number_or_share
from fl_lightning.utilities.argument_types import checks_types

Engine = Literal["trainer", "fabric", "stacked", "auto"]
ProgressScope = Literal["run", "round"]
OptimizerState = Literal["fresh", "kept"]
Precision = Literal["auto", "32-true", "16-mixed", "bf16-mixed", "64-true", "bf16-true", "16-true"]


@checks_types
@dataclass(frozen=True)
class LocalTraining:
    """Configure a client's own Lightning Trainer.

    Optimizer and scheduler come from the module's ``configure_optimizers``, called anew each round.

    Args:
        engine: what trains a client; the results agree up to rounding. ``trainer`` uses a Lightning Trainer for each client;
            ``fabric``, a lean loop that calls what the module and callbacks override, equal to the last bit;
            ``stacked`` trains many clients at once, equal within rounding; ``auto`` is ``fabric`` if it can train the
            module, and otherwise ``trainer``, so that the result is always that of ``trainer``.
        stack_size: number of clients that ``stacked`` trains at once, >= 1; memory grows with it.
        compile: let ``stacked`` compile each shape of a step: half a minute once, then faster. Groups are padded to few sizes.
            ``reduce-overhead`` also records CUDA graphs, as in ``torch.compile``: a step of small networks then takes one
            launch, and some memory.
        channels_last: keep the weights of convolutions in channels_last order: faster for larger images and more channels;
            results differ in the last bits.
        max_epochs: local epochs E per round, >= 1, or -1 for no limit when ``max_steps`` gives one.
        max_steps: largest number of optimizer steps per round; -1 for no limit.
        precision: precision of the client's training. ``auto`` follows the outer Trainer's ``precision`` unless that is its
            default, 32-true; then it is bf16-mixed or 16-mixed on a GPU (bf16 if the GPU supports it) and 32-true elsewhere
            and for ``stacked``, which has no mixed precision.
        gradient_clip_val: largest norm or value of the gradients, > 0; None for no clipping.
        gradient_clip_algorithm: clip by total ``norm`` or each ``value``.
        accumulate_grad_batches: batches per optimizer step, >= 1.
        limit_train_batches: share (float in (0, 1]) or number (int) of a client's batches per local epoch.
        detect_anomaly: let autograd name the operation that produced a NaN; slow.
        deterministic: use deterministic algorithms only.
        progress: what the module's epochs, steps and schedulers count. ``run``: the whole training, so that ``current_epoch``,
            ``global_step`` and schedulers continue over rounds, and ``trainer.max_epochs`` and
            ``estimated_stepping_batches`` cover all rounds. A client that misses rounds is as far as if it had taken part.
            ``round``: each round begins again at epoch and step 0.
        optimizer_state: ``fresh`` optimizers in each round, as in the papers; or ``kept``, where each client resumes with its
            own momentum, moments and loss scale.
        lr_decay: factor on every learning rate per round, in (0, 1]: round r trains at ``lr * lr_decay ** r``, where lr is what
            a schedule gives, if there is one.
        proximal_mu: FedProx's mu, >= 0: adds ``mu * (w - w_t)`` to the gradients of any module, after AMP's unscaling
            and before clipping; w_t is the model that the client starts from, which on some routes is another client's.
        threads: intra-op CPU threads per client; None is 1 if ranks share a CPU, and torch's own number otherwise. The number
            affects the last bits of the result, so fix it if runs on one rank and on several must agree.
        callbacks: Lightning callbacks for the clients' Trainers; each client gets its own copies.
        full_batch: train on one batch of all the client's examples, for FedSGD.
        privacy: differential privacy of single examples; None for no such privacy.
        partial_work: let a share of the clients do fewer epochs; see :class:`PartialWork`.

    Raises:
        ConfigurationError: for a value outside its range.

    Example:
        >>> from fl_lightning import LocalTraining
        >>> local = LocalTraining(max_epochs=3, accumulate_grad_batches=2, proximal_mu=0.01)  # FedProx
        >>> local.steps(batches=10)  # of a client with 10 batches
        15
    """

    engine: Engine = "trainer"
    stack_size: int = 64
    compile: bool | Literal["reduce-overhead"] = False
    channels_last: bool = False
    max_epochs: int = 1
    max_steps: int = -1
    precision: Precision = "auto"
    gradient_clip_val: float | None = None
    gradient_clip_algorithm: Literal["norm", "value"] = "norm"
    accumulate_grad_batches: int = 1
    limit_train_batches: int | float = 1.0
    detect_anomaly: bool = False
    deterministic: bool | None = None
    progress: ProgressScope = "run"
    optimizer_state: OptimizerState = "fresh"
    lr_decay: float = 1.0
    proximal_mu: float = 0.0
    threads: int | None = None
    callbacks: list[Callback] | None = None
    full_batch: bool = False
    privacy: ExamplePrivacy | None = None
    partial_work: PartialWork = field(default_factory=PartialWork)
    on_resume = ResumeRule(stays="privacy", free="threads detect_anomaly")

    def __post_init__(self) -> None:
        epochs, steps, clip = self.max_epochs, self.max_steps, self.gradient_clip_val
        stacked = self.engine == "stacked"
        for setting, fits, wanted in (
            ("stack_size", self.stack_size >= 1, "1 or above"),
            ("compile", not self.compile or stacked, f"false with the engine '{self.engine}', as only 'stacked' compiles"),
            ("max_epochs", epochs >= 1 or (epochs == -1 and steps > 0), "1 or above (-1 only with max_steps)"),
            ("max_steps", steps >= 1 or steps == -1, "1 or above, or -1 for no limit"),
            ("gradient_clip_val", clip is None or clip > 0, "above 0, or null"),
            ("accumulate_grad_batches", self.accumulate_grad_batches >= 1, "1 or above"),
            ("lr_decay", 0 < self.lr_decay <= 1, "above 0 and at most 1"),
            ("proximal_mu", self.proximal_mu >= 0, "0 or above"),
            ("threads", self.threads is None or self.threads >= 1, "1 or above, or null"),
        ):
            require(fits, f"federation.local.{setting}", wanted, getattr(self, setting))
        require_number_or_share("federation.local.limit_train_batches", self.limit_train_batches)

    @property
    def side_by_side(self) -> bool:
        """Return whether clients train at once: each to its end, without a pull, and like a Trainer only within rounding."""
        return self.engine == "stacked"

    def alone(self, epochs: int | None) -> LocalTraining:
        """Return the settings of a client that trains outside of the federation, for other epochs than usual unless None."""
        changes: dict[str, Any] = {"proximal_mu": 0.0}
        if self.side_by_side:
            changes |= {"engine": "fabric", "compile": False}
        return replace(self, **changes | ({} if epochs is None else {"max_epochs": epochs, "max_steps": -1}))

    def batches(self, length: int, fast_dev_run: bool = False) -> int:
        """Return the number of batches in a local epoch of a client with ``length`` batches.

        Raises:
            ConfigurationError: if the share of the client's batches is less than one batch.
        """
        limit = 1 if fast_dev_run else self.limit_train_batches
        if isinstance(limit, int):
            return min(length, limit)
        count = int(length * limit)
        if length and not count:
            raise ConfigurationError(
                f"'federation.local.limit_train_batches' is {limit}, which is less than one batch for a client with {length} "
                f"batches. Set it to {math.ceil(100 / length) / 100} or above, or to a number of batches."
            )
        return count

    def require_steps(self, setting: str) -> None:
        """Refuse a setting that ends a client's training early, if the engine runs many clients' steps at once.

        Raises:
            ConfigurationError: naming the setting and the engines.
        """
        if self.side_by_side:
            raise ConfigurationError(
                f"'{setting}' is checked between a client's steps, but the engine '{self.engine}' may run many clients' steps "
                "at once. Set 'federation.local.engine' to 'fabric' or 'trainer'."
            )

    def steps(self, batches: int, epochs: int | None = None) -> int:
        """Return the number of optimizer steps of a fit that nothing stops early.

        Args:
            batches: number of batches in a whole epoch.
            epochs: local epochs of a client that does fewer than ``max_epochs``; None for ``max_epochs``.
        """
        most = self.max_steps if self.max_steps > 0 else math.inf
        local = self.max_epochs if self.max_epochs > 0 else math.inf
        used = self.batches(batches)
        planned = min(math.ceil(used / self.accumulate_grad_batches) * (local if epochs is None else min(epochs, local)), most)
        return int(planned)


def resolve_precision(local: LocalTraining, outer: str, device: torch.device) -> str:
    """Resolve ``precision: auto``.

    It is the outer Trainer's precision unless that is 32-true, then mixed on a GPU. It is 32-true elsewhere and for stacked
    clients, which have no mixed precision.
    """
    if local.precision != "auto":
        return local.precision
    if outer != "32-true":
        return outer
    if device.type != "cuda" or local.engine == "stacked":
        return "32-true"
    return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "16-mixed"


class FederationSettings(federation.FederationSettings, Protocol):
    """Name the settings of :class:`~fl_lightning.FederatedOrchestrator`, which documents them."""

    local: LocalTraining

    @property
    def active_options(self) -> tuple[OptionSettings, ...]:
        """Return the options in use, in the order of their hooks."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Describe where and how the clients of a process train.

    Attributes:
        local: the settings of the local training.
        precision: the precision, as accepted by Lightning's Trainer.
        device: the device to train on.
        rules: the rules that change the clients' training, in order.
        hooks: the clients' hooks of the options in use, in order.
        deadline: the time limit of a client's training in seconds, checked between steps; None for no limit.
        logger: whether the module finds a (silent) logger.
        outer: the user's Trainer, of which a module may read some attributes; None at a site.
        inference_mode: whether validation runs in inference mode, without autograd.
        fast_dev_run: whether each client trains on a single batch.
        cohort: the largest number of clients in a round; None if it is unknown.
        site: the site, if the clients are not simulated.
        compresses: whether updates are sent over a network, in a compressed form if a transform makes them smaller.
    """

    local: LocalTraining
    precision: str = "32-true"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rules: Sequence[ClientRule] = ()
    hooks: Sequence[ClientHooks] = ()
    deadline: float | None = None
    logger: bool = False
    outer: Trainer | None = None
    inference_mode: bool = True
    fast_dev_run: bool = False
    cohort: int | None = None
    site: SitePlace | None = None
    compresses: bool = False
