"""Attackers' examples without a federation."""

from collections.abc import Mapping

from fl_lightning import Backdoor, FederatedDataModule, LabelAttack, RandomLabels
from fl_lightning.options.attackers.examples import poisoned


def mislabel(
    data: FederatedDataModule,
    attacks: Mapping[int, float | LabelAttack],
    seed: int,
    backdoors: Mapping[int, Backdoor] | None = None,
) -> None:
    """Falsify the labels of clients; a number is the share of wrong ones."""
    kinds = {k: attack if isinstance(attack, LabelAttack) else RandomLabels(attack) for k, attack in attacks.items()}
    data.client_datasets.change_examples(poisoned(kinds, backdoors or {}, seed))
