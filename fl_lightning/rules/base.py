"""Define client rules: what a client adds to its own training, on every engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.types import Pull


@dataclass(frozen=True)
class LocalStart:
    """Hold what a rule knows when a client begins to train.

    Attributes:
        parameters: the trained parameters as the client starts, in the module's order. Do not change them.
        broadcast: the tensors that the strategy sent with the model, by name; see :meth:`Strategy.broadcast`.
        kept: the tensors that the client has kept of earlier rounds, by name.
        pull: the model that attracts the client on this route, or None.
    """

    parameters: Sequence[Tensor]
    broadcast: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    pull: Pull | None = None


@dataclass(frozen=True)
class LocalEnd:
    """Hold what a rule knows when a client has trained.

    Attributes:
        start: the trained parameters as the client started, one after another: p numbers in all.
        end: the parameters afterwards, shape (p,).
        rates: the sum of the steps' learning rates; 0 if the optimizer is not plain SGD.
        broadcast: as in :class:`LocalStart`.
    """

    start: Sequence[Tensor]
    end: Tensor
    rates: float
    broadcast: Mapping[str, Tensor] = field(default_factory=dict)


class ClientRule(ABC):
    """Change a client's gradients, and keep and send tensors of its own.

    One rule serves all clients: what belongs to a client is in the arguments. Engines call :meth:`begin` once for each
    client, :meth:`correct_gradients` before each step, and :meth:`finish` at the end. Side by side, the terms and parameters
    of several clients are stacked along a first axis, which :meth:`correct_gradients` must allow for.

    Attributes:
        kept_like_parameters: names of kept tensors of shape (p,), p the number of trained parameters. They become void
            when other parameters are trained.
        stacks: whether :meth:`correct_gradients` works on stacked clients.
    """

    kept_like_parameters: tuple[str, ...] = ()
    stacks: bool = True

    @abstractmethod
    def begin(self, start: LocalStart) -> list[Tensor]:
        """Return the terms that :meth:`correct_gradients` needs, one for each trained parameter, in its shape and dtype.

        An empty list turns the rule off for this client.
        """

    @abstractmethod
    def correct_gradients(
        self, parameters: Sequence[Tensor], terms: Sequence[Tensor], scale: float = 1.0, pull: Pull | None = None
    ) -> None:
        """Change ``.grad`` of each parameter in place: unscaled or times ``scale``, and not yet clipped.

        Args:
            parameters: the parameters that the next step changes, each of the shape of its term.
            terms: their terms from :meth:`begin`.
            scale: the factor of the gradients, where an optimizer removes it inside its step; otherwise 1.
            pull: as in :class:`LocalStart`.
        """

    def finish(self, end: LocalEnd) -> dict[str, Tensor]:
        """Return the tensors that the client sends with its model, by name; none by default."""
        return {}

    def keep(self, kept: MutableMapping[str, Tensor], extras: Mapping[str, Tensor], in_place: bool) -> None:  # noqa: B027
        """Store what the client keeps for its next round; nothing by default.

        Args:
            kept: the client's tensors, by name.
            extras: the result of :meth:`finish`.
            in_place: whether the tensors in ``kept`` may be changed in place: no one needs their old values.
        """

    def check_optimizers(self, optimizers: Sequence[Optimizer], words: str) -> None:  # noqa: B027
        """Refuse optimizers for which the rule is not defined; by default none.

        Args:
            optimizers: the client's optimizers.
            words: their names, for the message.

        Raises:
            ConfigurationError: if the rule is not defined for them.
        """

    def strength(self, pull: Pull | None) -> float:
        """Return mu if the rule adds ``mu * (w - anchor)`` to the gradients, which FedNova's ||a_k|| counts; otherwise 0."""
        return 0.0
