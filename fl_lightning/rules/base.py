"""Define client rules, which change a client's training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.rules.passes import Batch, LocalModel
from fl_lightning.types import Pull, Snapshot
from fl_lightning.utilities.argument_types import ChecksTypes

Part = Literal["shared", "held"]
"""The parameters that the server averages, or those that each client keeps."""


@dataclass(frozen=True)
class LocalStart:
    """Hold the information for a rule at the start of a client's training.

    Attributes:
        parameters: the trained parameters at the start, in the module's order. Do not change them.
        broadcast: the tensors that the strategy sent with the model, by name; see :meth:`~fl_lightning.Strategy.broadcast`.
        kept: the tensors that the client's rules have stored in earlier rounds, by name, and ``vector`` and ``counters``
            of its own model, if it keeps one.
        pull: the model that attracts the client on this route, or None.
        model: the client's complete model at the start; None on the engine ``stacked``.
    """

    parameters: Sequence[Tensor]
    broadcast: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    pull: Pull | None = None
    model: LocalModel | None = None


@dataclass(frozen=True)
class LocalEnd:
    """Hold the information for a rule at the end of a client's training.

    Attributes:
        start: the trained parameters at the start, one after another, p numbers in total.
        end: the trained parameters at the end, shape (p,).
        buffers: the averaged buffers at the end, shape (d - p,).
        rates: the sum of the learning rates over the steps; 0 if the optimizer is not plain SGD.
        broadcast: the tensors that the strategy sent, as in :class:`~fl_lightning.rules.LocalStart`.
        kept: the tensors that the client has stored in earlier rounds, as in :class:`~fl_lightning.rules.LocalStart`.
    """

    start: Sequence[Tensor]
    end: Tensor
    buffers: Tensor
    rates: float
    broadcast: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Mapping[str, Tensor] = field(default_factory=dict)


class ClientRule(ChecksTypes, ABC):
    """Change a client's gradients, and store and send additional tensors.

    One rule serves all clients, so the arguments contain everything that belongs to a client. Engines call :meth:`begin` once
    for each client, :meth:`correct_gradients` before each step, and :meth:`finish` at the end. If clients train side by side,
    their terms and parameters are stacked along a first axis, which :meth:`correct_gradients` must support.

    Attributes:
        kept_like_parameters: the names of stored tensors of shape (p,), where p is the number of trained parameters. They
            become invalid when other parameters are trained.
        stacks: whether :meth:`correct_gradients` supports stacked clients. The engine ``stacked`` also refuses a rule that
            sets ``own_model`` or overrides a method that it does not call: :meth:`loss_term`, :meth:`join_optimizers`,
            :meth:`sends`, :meth:`keeps_model`, :meth:`figures` or :meth:`resting`.
        own_model: whether each client keeps a complete model of its own: the trained one, if :meth:`sends` replaces it in the
            message, or what :meth:`keeps_model` returns, or otherwise one that it trains after each turn, with a pull of
            ``pull_strength`` towards the start.
        sends_along: the names of the tensors of :meth:`finish`; the update of a site without one of them is refused.
        listens: the full names of parts of the module whose outputs :meth:`loss_term` reads; set it in :meth:`begin`.
    """

    kept_like_parameters: tuple[str, ...] = ()
    stacks: bool = True
    own_model: bool = False
    pull_strength: float = 0.0
    sends_along: tuple[str, ...] = ()
    listens: tuple[str, ...] = ()

    @abstractmethod
    def begin(self, start: LocalStart) -> list[Tensor]:
        """Return the terms for :meth:`correct_gradients`, one for each trained parameter, in its shape and dtype.

        An empty list turns the rule off for this client.
        """

    def correct_gradients(
        self, parameters: Sequence[Tensor], terms: Sequence[Tensor], scale: float = 1.0, pull: Pull | None = None
    ) -> None:
        """Change ``.grad`` of each parameter in place; nothing by default. It is multiplied by ``scale`` and not yet clipped.

        Args:
            parameters: the parameters that the next step changes, each with the shape of its term.
            terms: their terms from :meth:`begin`.
            scale: the factor on the gradients if the optimizer removes it inside its step; otherwise 1.
            pull: the model that attracts the client, as in :class:`~fl_lightning.rules.LocalStart`.
        """

    def loss_term(self, batch: Batch, parameters: Sequence[Tensor], terms: Sequence[Tensor]) -> Tensor | None:
        """Return a term, a scalar, that is added to the loss of a batch; None by default.

        Args:
            batch: the module's own pass over the batch, which can be repeated with other tensors.
            parameters: the trained parameters.
            terms: their terms from :meth:`begin`.
        """
        return None

    @property
    def reads_batches(self) -> bool:
        """Return whether the rule defines :meth:`loss_term`."""
        return type(self).loss_term is not ClientRule.loss_term

    def finish(self, end: LocalEnd) -> dict[str, Tensor]:
        """Return the tensors that the client sends with its model, by name; none by default."""
        return {}

    def sends(self, parameters: Sequence[Tensor], terms: Sequence[Tensor]) -> list[Tensor] | None:
        """Return other parameters that the client sends instead of the trained ones; None by default.

        Args:
            parameters: the parameters after the training.
            terms: their terms from :meth:`begin`.
        """
        return None

    def keeps_model(self, model: Snapshot, terms: Sequence[Tensor]) -> Snapshot | None:
        """Return the model that the client keeps as its own beside the one that it sends; None by default.

        Args:
            model: the trained model.
            terms: the terms from :meth:`begin`.
        """
        return None

    def figures(self) -> dict[str, float]:
        """Return figures of the turn, which are logged like the metrics of the client's module; none by default."""
        return {}

    def remember(self, end: LocalEnd) -> dict[str, Tensor]:
        """Return the tensors that the client stores for its next round without sending them, by name; none by default."""
        return {}

    def resting(self, epoch: int) -> Part | None:
        """Return the part that does not train in an epoch of the client's turn, counted from 0; None by default."""
        return None

    def keep(self, kept: MutableMapping[str, Tensor], extras: Mapping[str, Tensor], in_place: bool) -> None:
        """Store the client's tensors for its next round; nothing by default.

        Args:
            kept: the client's stored tensors, by name.
            extras: the result of :meth:`finish`.
            in_place: whether to change the tensors in ``kept`` in place, which is safe if their old values are not needed.
        """

    def check_optimizers(self, optimizers: Sequence[Optimizer], words: str) -> None:
        """Refuse optimizers for which the rule is not defined; accept all by default.

        Args:
            optimizers: the client's optimizers.
            words: their names, for the message.

        Raises:
            ConfigurationError: if the rule is not defined for them.
        """

    def join_optimizers(self, optimizers: Sequence[Optimizer], parameters: Sequence[Tensor], terms: Sequence[Tensor]) -> None:
        """Add tensors of the rule's own to the optimizers before the first step; nothing by default.

        Args:
            optimizers: the client's optimizers.
            parameters: the trained parameters.
            terms: their terms from :meth:`begin`.
        """

    def strength(self, pull: Pull | None) -> float:
        """Return mu if the rule adds ``mu * (w - anchor)`` to the gradients, for FedNova's ||a_k||; otherwise 0."""
        return 0.0
