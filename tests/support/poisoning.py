"""Attackers' examples without a federation, and data of a client that breaks."""

from collections.abc import Mapping
from typing import Any

import torch
from federations import SIZES, Blobs

from fl_lightning import Backdoor, FederatedDataModule, LabelAttack, RandomLabels
from fl_lightning.options.attackers.examples import poisoned


class OneBroken(Blobs):
    """Client 0's inputs are not numbers."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.train[0][: SIZES[0]] = torch.nan


def mislabel(
    data: FederatedDataModule,
    attacks: Mapping[int, float | LabelAttack],
    seed: int,
    backdoors: Mapping[int, Backdoor] | None = None,
) -> None:
    """Falsify the labels of clients; a number is the share of wrong ones."""
    kinds = {k: attack if isinstance(attack, LabelAttack) else RandomLabels(attack) for k, attack in attacks.items()}
    data.client_datasets.change_examples(poisoned(kinds, backdoors or {}, seed))
