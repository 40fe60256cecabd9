"""Correct client drift with control variates, as SCAFFOLD's clients do (Karimireddy et al. 2020, Algorithm 1, option II)."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence

from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.functional.local_steps import control_change, control_correction
from fl_lightning.functional.proximal import add_to_gradients
from fl_lightning.rules.base import ClientRule, LocalEnd, LocalStart
from fl_lightning.rules.pull import like_parameters
from fl_lightning.rules.sgd import require_plain_sgd
from fl_lightning.types import Pull


class ControlVariates(ClientRule):
    """Add ``c - c_k`` to the gradients, and send the change of c_k, which the client stores.

    The server sends c as ``control``, shape (p,); the client sends ``c_k+ - c_k`` under the same name.
    """

    kept_like_parameters = ("control",)
    sends_along = ("control",)

    def begin(self, start: LocalStart) -> list[Tensor]:
        """Return c - c_k in the parameters' shapes, with c_k = 0 in a client's first round; empty until the server sends c."""
        if "control" not in start.broadcast:
            return []
        device = start.parameters[0].device
        correction = control_correction(start.broadcast["control"], start.kept.get("control")).to(device)
        return like_parameters(correction, start.parameters)

    def correct_gradients(
        self, parameters: Sequence[Tensor], terms: Sequence[Tensor], scale: float = 1.0, pull: Pull | None = None
    ) -> None:
        """Add the correction; see :meth:`ClientRule.correct_gradients`."""
        add_to_gradients(parameters, terms, scale)

    def finish(self, end: LocalEnd) -> dict[str, Tensor]:
        """Return the change of c_k."""
        if "control" not in end.broadcast:
            return {}
        return {"control": control_change(end.broadcast["control"], end.start, end.end, end.rates)}

    def keep(self, kept: MutableMapping[str, Tensor], extras: Mapping[str, Tensor], in_place: bool) -> None:
        """Add the change to c_k."""
        change, own = extras.get("control"), kept.get("control")
        if change is not None and own is not None:
            change = own.add_(change.to(own)) if in_place else own.to(change) + change
        if change is not None:
            kept["control"] = change

    def check_optimizers(self, optimizers: Sequence[Optimizer], words: str) -> None:
        """Refuse anything but plain SGD with one rate; see :meth:`ClientRule.check_optimizers`."""
        require_plain_sgd(optimizers, words)
