"""Count the privacy that a run spends, and write it down before it is spent."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from fl_lightning.core.federation import Federation, ServerContext
from fl_lightning.core.option import ServerHooks, guarantees, options_of
from fl_lightning.core.plan import RoundPlan
from fl_lightning.errors import CheckpointError, ConfigurationError
from fl_lightning.functional.spending import Entry, Spending, Spendings
from fl_lightning.messages import ClientTask
from fl_lightning.options.privacy_account.budget import Budget
from fl_lightning.options.privacy_account.checks import check_data
from fl_lightning.options.privacy_account.settings import PrivateOption
from fl_lightning.types import ClientUpdate, RoundResult
from fl_lightning.utilities.collectives import Collectives
from fl_lightning.utilities.ledger import Ledger

LEDGER = "privacy_ledger.jsonl"
"""The file in ``trainer.default_root_dir``, append-only. Runs in one folder share it, and each line names its run."""
SHARED = (
    "Some persons have examples at several clients, at up to {}. Epsilon of examples is composed over all clients of a person. "
    "Epsilon of clients covers the examples that one client has of a person, not all of them. The same name at two clients is "
    "the same person: if it is not, give the persons names of their own."
)
SIMULATED = (
    "The noise of this run is derived from 'noise_seed' {}, so anyone who knows the number can subtract it: the run is "
    "a simulation that protects no data. Remove 'noise_seed' for privacy."
)


class PrivacyAccount(ServerHooks):
    """Count a run's releases, equally on every rank.

    Each release is written to the ledger before it happens, so a kill mid-round may leave some charged that did not happen. At
    its end, a round refunds unused charges (failed clients, steps that were not made), and also charges failed attempts. With
    ``noise_seed`` no ledger is needed: a repeated round releases the same values again, so the sums in the checkpoint are
    complete.

    Args:
        private: the settings of privacy in use, of clients and of examples.
        context: the fit.

    Attributes:
        spending: the releases of the run so far.
    """

    _ledger: Ledger[Entry]  # on the first rank

    def __init__(self, private: Sequence[PrivateOption], context: ServerContext) -> None:
        self._private, self._trainer = private, context.trainer
        self._noise_seed = private[0].noise_seed
        # On every rank: whether the first rank has a ledger.
        self._written = self._noise_seed is None and not context.trainer.fast_dev_run  # type: ignore[attr-defined]
        self.spending = Spendings()
        self._budget = Budget(private, context)
        self._run, self._lines = "", 0
        self._loaded: Mapping[str, Any] = {}
        self._outlasting: dict[str, dict[int, int]] = {}  # what is planned for tasks that outlast a round
        self.begin_round(0)

    # ---------------------------------------------------------------- start and checkpoints

    def restored(self) -> None:
        """Open the account that a resumed run continues, and solve the noise for a target epsilon.

        Clients and sites are told only afterwards.

        Raises:
            CheckpointError: if the ledger of the resumed run is missing or incomplete.
            ConfigurationError: if the run's folder cannot hold a ledger.
        """
        opened = Collectives(self._trainer).spread(1, lambda _: self._open(self._loaded))  # on the first rank alone
        ((self._run, spending, self._lines),) = opened
        self.spending.load_state_dict(spending)
        self._budget.solve(self.spending)
        for option in self._private:
            option.begin(self._loaded.get("options", {}).get(option.unit, {}))

    def open(self, federation: Federation) -> None:
        """Say what the noise covers."""
        if self._noise_seed is not None:
            rank_zero_warn(SIMULATED.format(self._noise_seed))
        if federation.data.splits.persons is not None and federation.data.client_datasets.sharing:
            rank_zero_warn(SHARED.format(max(map(len, federation.data.client_datasets.sharing))))
        if federation.server.held_tensors():
            rank_zero_info(
                f"Differential privacy ({guarantees(self._private)}) covers what the clients send. The parts that they hold "
                "have none: whoever gets a client's complete model, such as an export, may learn about its examples from them."
            )

    def _open(self, before: Mapping[str, Any]) -> tuple[str, Any, int]:
        """Return the name of the run, its spending, and the number of lines in its ledger."""
        run, folder = str(before.get("run") or secrets.token_hex(8)), self._trainer.default_root_dir
        if not self._written:
            return run, before.get("spending", ()), 0
        if "://" in str(folder):
            raise ConfigurationError(
                f"'trainer.default_root_dir' is {folder}, but the privacy ledger must be synced to a disk. "
                "Use a folder on this machine."
            )
        self._ledger = ledger_in(Path(folder))
        spending, own = Spendings(), [entry for entry in self._ledger.read() if entry["run"] == run]
        for entry in own:
            spending.of(entry["noise"]).add(entry)
        if (lines := len(own)) < before.get("lines", 0):
            there = f"has {lines} lines of this run" if self._ledger.path.exists() else "does not exist"
            raise CheckpointError(
                f"The privacy ledger '{self._ledger.path}' {there}, but the checkpoint was written after {before['lines']} "
                "lines, so the privacy spent cannot be counted. Set 'trainer.default_root_dir' to the folder of the run that "
                "wrote the checkpoint, copy its ledger here, or start again without 'ckpt_path'."
            )
        return run, spending.state_dict(), lines

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: with a ledger its length, otherwise the sums, and never the key."""
        if not self._run:
            return dict(self._loaded)
        kept = {"lines": self._lines} if self._written else {"spending": self.spending.state_dict()}
        options = {option.unit: option.state() for option in self._private}
        return {"run": self._run, **kept, "budget": self._budget.state_dict(), "options": options}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Store the state of a checkpoint for :meth:`open`."""
        self._loaded = state
        self._budget.load_state_dict(state.get("budget", {}))

    def conclude(self, rounds: int) -> None:
        """Warn at the end of a fit if its noise was simulated."""
        if self._noise_seed is not None:
            rank_zero_warn(f"The run has finished. {SIMULATED.format(self._noise_seed)}")

    # ---------------------------------------------------------------- releases

    def begin_round(self, round_idx: int) -> None:
        """Prepare for the charges of a round."""
        self._clients = 0
        self._planned: dict[str, Counter[int]] = {name: Counter(self._outlasting.get(name, {})) for name in ("sent", "steps")}

    def charge(self, federation: Federation, round_idx: int, plan: RoundPlan, tasks: Sequence[ClientTask]) -> None:
        """Charge the releases of turns in advance."""
        if not tasks:
            return
        entry: Entry = {"round": round_idx, "period": tasks[0].period}
        self._clients = len(plan.clients)
        for option in self._private:
            entry |= option.planned(federation, plan, tasks)
        self._budget.require(round_idx, self.spending, entry)
        for name, planned in self._planned.items():
            planned.update(entry.get(name, {}))
        self._write(entry)

    def drained(self, federation: Federation, round_idx: int, updates: list[ClientUpdate]) -> list[ClientUpdate]:
        """Correct the charges to the actual releases, and tell what each client has spent."""
        under_way = federation.pool.under_way()
        self._outlasting = {name: {k: n for k, n in each.items() if k in under_way} for name, each in self._planned.items()}
        if any(self._planned.values()):
            everyone = federation.comm.gather(federation.pool.counts())
            difference: Entry = {}
            for name, planned in self._planned.items():
                change = Counter({client: -count for client, count in planned.items() if client not in under_way})
                for theirs in everyone:
                    change.update(theirs.get(name, {}) if planned else {})
                if any(change.values()):
                    difference[name] = {client: count for client, count in sorted(change.items()) if count}
            if difference:
                self._write({"round": round_idx, **difference})
        for option in self._private:
            option.delivered(federation, [update.client for update in updates])
        return [replace(update, epsilon=self._epsilon_of(update.client, federation)) for update in updates]

    def _write(self, entry: Entry) -> None:
        """Count a release before it happens, and write it to the disk; every rank calls it.

        Raises:
            CheckpointError: if the ledger cannot be written; other ranks raise ClientError.
        """
        if self._written:
            line: Entry = {"run": self._run, **entry, "noise": self._budget.noise}
            Collectives(self._trainer).spread(1, lambda _: self._ledger.append(line))
        self._lines += 1
        self.spending.of(self._budget.noise).add(entry)

    def _epsilon_of(self, client: int, federation: Federation) -> float | None:
        found = (option.epsilon_of(client, self.spending, federation.data) for option in self._private)
        return next((epsilon for epsilon in found if epsilon is not None), None)

    def after_round(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Return the privacy that the run has spent so far."""
        figures: dict[str, float] = {}
        for option in self._private:
            option.after_round(federation, round_idx, self._clients)
            figures[f"epsilon_of_{option.unit}"] = option.spent(self.spending, federation.data)
        self._budget.stop_if_spent(round_idx, self.spending)
        figures |= self._budget.figures()
        return figures | ({} if self._noise_seed is None else {"noise_is_simulated": 1.0})


def ledger_in(root: Path) -> Ledger[Entry]:
    """Return a run's ledger: in its folder, or in ``lightning_logs`` of the current one, where a Trainer without one logs."""
    folder = root / "lightning_logs" if root.absolute() == Path.cwd() else root
    fix = "Restore the file from a copy, or start again without 'ckpt_path' in another folder."
    return Ledger(folder / LEDGER, _checked, CheckpointError, fix, creates=True)


def _checked(line: Entry) -> Entry:
    """Return a line of any run that can be counted."""
    Spending().add({**line, "run": line["run"], "noise": line["noise"]})
    return line


def account_of(option: PrivateOption, context: ServerContext) -> ServerHooks:
    """Return the account of all such options, with the first of them; the others have no hooks at the server.

    Args:
        option: the option.
        context: the fit.

    Raises:
        ConfigurationError: if the data depend on other examples or clients, or if only one of two noises is simulated.
    """
    check_data(context.data, option.title, option.no_rebalancing)
    active = options_of(context)
    private = [part for part in active if isinstance(part, PrivateOption)]
    one, other = private[0], private[-1]
    if one.noise_seed != other.noise_seed:
        raise ConfigurationError(
            f"'noise_seed' of {other.title} is {other.noise_seed}, but 'noise_seed' of {one.title} is {one.noise_seed}. "
            "Set both to the same number for a simulation, or remove both."
        )
    known = [part.title for part in active if part.key(context.seed) is not None]
    if known and option.noise_seed is None:
        raise ConfigurationError(
            f"{known[0]} sets the key of secret random numbers, from which the noise of {option.title} could be subtracted. "
            "Remove one of them."
        )
    return PrivacyAccount(private, context) if one is option else ServerHooks()
