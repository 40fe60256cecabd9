"""A request to a site, kept until it is answered."""

from __future__ import annotations

from dataclasses import dataclass

from fl_lightning.flower.wire.transport import Content
from fl_lightning.messages import ServerModel


@dataclass
class Request:
    """Hold a request so that it can be sent again as it was.

    Attributes:
        order: the orders, as an envelope.
        model: the model to which they refer.
        sends: whether the model goes with them.
        base: the version of the model with which the sent one shares tensors; 0 for none.
        size: the bytes that were sent.
        numbered: whether the model's version is a number of this process, and not of one before it.
        lost: how often the transport has lost it.
    """

    order: Content
    model: ServerModel
    sends: bool
    base: int = 0
    size: int = 0
    numbered: bool = True
    lost: int = 0
