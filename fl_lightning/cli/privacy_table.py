"""Tabulate what a configuration would cost in privacy, without training."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from lightning.pytorch import Trainer

from fl_lightning.core.federation import ServerContext
from fl_lightning.core.option import own_cohort
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.noise_search import least_noise
from fl_lightning.options.privacy_account.settings import PrivateOption
from fl_lightning.reporting.tables import text_table
from fl_lightning.server.checks.compatibility import round_size
from fl_lightning.settings.local_training import FederationSettings
from fl_lightning.utilities.csv_file import write_rows

COLUMNS = ["privacy of", "what varies", "rounds", "clients per round", "noise multiplier", "epsilon"]
TARGETS = (0.5, 1.0, 2.0, 4.0, 8.0)
_SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)


def show_privacy(settings: FederationSettings, trainer: Trainer, data: FederatedDataModule, as_csv: bool) -> None:
    """Print the table: epsilon against rounds, noise and cohort, and noise against a target epsilon.

    Args:
        settings: the settings of the federation.
        trainer: the Trainer, which plans the rounds.
        data: the data after ``setup('fit')``, of which only the clients' numbers of examples are read.
        as_csv: whether the table is for programs.

    Raises:
        ConfigurationError: if nothing adds noise, or the plan is not known.
    """
    private = [option for option in settings.active_options if isinstance(option, PrivateOption)]
    cohort = round_size(settings, data.num_clients)
    context = ServerContext(trainer=trainer, data=data, settings=settings, cohort=cohort)
    rounds = context.planned_rounds
    if not private:
        raise ConfigurationError(
            "Nothing in 'federation' adds noise, so it has no epsilon. docs/privacy.md shows the settings that add noise."
        )
    if rounds is None or own_cohort(settings.active_options, data.num_clients) is not None:
        raise ConfigurationError(
            f"The table needs rounds that draw a cohort, and their number, but 'trainer.max_epochs' is {trainer.max_epochs}"
            f"{'' if rounds is None else ' and an option draws other rounds'}. Set 'trainer.max_epochs' to the planned number, "
            "and remove such an option."
        )
    rows = [row for option in private for row in _rows(option, context, max(1, rounds))]
    if as_csv:
        write_rows(sys.stdout, [COLUMNS, *rows])
        return
    print(text_table(COLUMNS, [[f"{cell:.4g}" if isinstance(cell, float) else cell for cell in row] for row in rows]))
    deltas = ", ".join(f"delta of {option.unit} {option.delta:g}" for option in private)
    print(
        f"Epsilon of a whole run without repeated rounds; {deltas}. Noise at the clients and of examples: of the client, or "
        "the clients that hold examples of one person, with the largest epsilon, drawn in every round."
    )


def _rows(option: PrivateOption, context: ServerContext, rounds: int) -> list[list[Any]]:
    """Return the rows of one option. Cohorts vary only if epsilon depends on them."""
    target, data = option.target_epsilon, context.data
    noise = option.noise_multiplier if target is None else _noise(option, context, rounds, target)
    if noise is None:
        raise ConfigurationError(
            f"No noise multiplier up to a million gives {option.title} an epsilon of {target:g}. Raise 'target_epsilon'."
        )

    def row(varies: str, rounds: int, context: ServerContext, noise: float) -> list[Any]:
        cases = option.cases([option.whole_run(context, rounds)], data)
        return [option.unit, varies, rounds, context.cohort, noise, max(option.epsilon([noise], case) for case in cases)]

    found = [row("as configured", rounds, context, noise)]
    found += [
        row("rounds", n, context, noise) for n in sorted({max(1, rounds // 4), max(1, rounds // 2), 2 * rounds} - {rounds})
    ]
    found += [row("noise", rounds, context, noise * factor) for factor in (0.5, 2.0, 4.0)]
    whole = option.cases([option.whole_run(context, rounds)], data)
    for size in sorted({max(1, round(share * data.num_clients)) for share in _SHARES} - {context.cohort}):
        other = replace(context, cohort=size)
        if option.cases([option.whole_run(other, rounds)], data) != whole:
            found.append(row("clients per round", rounds, other, noise))
    for goal in TARGETS:
        least = _noise(option, context, rounds, goal)
        found += [] if least is None else [row("target epsilon", rounds, context, least)]
    return found


def _noise(option: PrivateOption, context: ServerContext, rounds: int, target: float) -> float | None:
    cases = option.cases([option.whole_run(context, rounds)], context.data)
    return least_noise(target, cases, lambda noise, case: option.epsilon([noise], case))
