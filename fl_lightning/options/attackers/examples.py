"""Change an attacker's examples: wrong labels, and a trigger on some images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.attacks.backdoor import Backdoor
from fl_lightning.attacks.labels import LabelAttack
from fl_lightning.data.changes import ExampleChange
from fl_lightning.functional.returned import require_vector
from fl_lightning.functional.seeding import generator
from fl_lightning.messages import Part


@dataclass(frozen=True)
class PoisonedExamples(ExampleChange):
    """Falsify the labels of one client, then stamp its images; see :class:`~fl_lightning.data.changes.ExampleChange`.

    Args:
        client: the client's id.
        seed: decides which examples change, once for all rounds.
        attack: the attack on its labels, or None.
        backdoor: the trigger and its class, or None.
    """

    client: int
    seed: int
    attack: LabelAttack | None = None
    backdoor: Backdoor | None = None

    setting = "federation.attackers"

    def labels(self, labels: Tensor, part: Part, num_classes: int) -> Tensor:
        """Return the labels on which the client trains."""
        if self.backdoor is not None:
            self.backdoor.check(num_classes)
        believed = labels
        if self.attack is not None:
            draw = generator(self.seed, self.client, "wrong labels", part)
            believed = self.attack.change(labels.clone(), num_classes, draw)  # a copy, which it may change in place
            remedy = "Return the labels on which the client trains, one for each of its examples."
            require_vector(believed, labels.numel(), f"{type(self.attack).__name__}.change returned", remedy)
        stamped = self.chosen(labels.numel(), part)
        if stamped is None or self.backdoor is None:
            return believed
        return torch.where(stamped, self.backdoor.target, believed)

    def chosen(self, count: int, part: Part) -> Tensor | None:
        """Choose which examples carry the trigger; None without a backdoor."""
        if self.backdoor is None:
            return None
        return self.backdoor.chosen(count, generator(self.seed, self.client, "backdoor", part))

    def inputs(self, inputs: Any) -> Tensor:
        """Return images with the trigger."""
        assert self.backdoor is not None
        return self.backdoor.stamp(inputs)


def poisoned(attacks: Mapping[int, LabelAttack], backdoors: Mapping[int, Backdoor], seed: int) -> dict[int, PoisonedExamples]:
    """Return the changes of attackers' examples, by client."""
    clients = {*attacks, *backdoors}
    return {client: PoisonedExamples(client, seed, attacks.get(client), backdoors.get(client)) for client in clients}
