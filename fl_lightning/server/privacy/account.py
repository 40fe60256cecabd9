"""Hold the secret key of a run's noise, and the account of the privacy spent."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.errors import CheckpointError, ConfigurationError, FederationError
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.functional.privacy import epsilon_of_examples
from fl_lightning.functional.spending import Entry, Spending
from fl_lightning.server.privacy.ledger import PrivacyLedger
from fl_lightning.settings.example_privacy import ExamplePrivacy
from fl_lightning.transforms.base import Transform
from fl_lightning.transforms.client_privacy import ClientPrivacy
from fl_lightning.utilities.collectives import Collectives

SIMULATED = (
    "The noise of this run is derived from 'noise_seed' {}, so anyone who knows the number can subtract it: the run is "
    "a simulation that protects no data. Remove 'noise_seed' for privacy."
)


class PrivacyAccount:
    """Hold a run's key and count its releases, equally on every rank.

    The first rank draws the key at each start and sends it to the others. Each release is written to the ledger before it
    happens. With ``noise_seed`` no ledger is needed: a repeated round releases the same values again, so the sums in the
    checkpoint are complete.

    Attributes:
        clients: the settings of the clients' privacy; None if clients are not private.
        examples: the settings of the examples' privacy; None if examples are not private.
        spending: the releases of the run so far.
    """

    def __init__(self) -> None:
        self.clients: ClientPrivacy | None = None
        self.examples: ExamplePrivacy | None = None
        self._secret: SecretKey | None = None
        self.spending = Spending()
        self._run, self._lines = "", 0
        self._ledger: PrivacyLedger | None = None  # on the first rank
        self._written = False  # on every rank: whether the first rank has a ledger
        self._loaded: Mapping[str, Any] | None = None

    @property
    def secret(self) -> SecretKey:
        """Return the key, which :meth:`begin` sets."""
        assert self._secret is not None
        return self._secret

    @property
    def active(self) -> bool:
        """Return whether clients or examples are private."""
        return self.clients is not None or self.examples is not None

    @property
    def noise_seed(self) -> int | None:
        """Return the number from which the noise is derived; None for a secret key."""
        private = self.clients or self.examples
        return None if private is None else private.noise_seed

    # ---------------------------------------------------------------- start and checkpoints

    def begin(self, trainer: Trainer, transforms: Sequence[Transform], examples: ExamplePrivacy | None, seed: int) -> None:
        """Share a key between ranks, and open the account that a resumed run continues.

        Args:
            trainer: the user's Trainer.
            transforms: the transforms of the clients' updates.
            examples: the settings of the examples' privacy, or None.
            seed: the seed of the federation, from which a simulated key is also derived, so that the runs of a study draw
                different noise.

        Raises:
            CheckpointError: if the ledger of the resumed run is missing or incomplete.
            ConfigurationError: if the run's folder cannot hold a ledger.
        """
        self.clients = next((one for one in transforms if isinstance(one, ClientPrivacy)), None)
        self.examples = examples
        goes_on = trainer.current_epoch > 0 and self._run  # a second fit by the same Trainer
        before = self._loaded or (self.state_dict() if goes_on else {})
        self._loaded, self._ledger = None, None
        self._written = self.active and self.noise_seed is None and not trainer.fast_dev_run  # type: ignore[attr-defined]
        opened, failure = None, None
        if trainer.is_global_zero:
            try:
                opened = self._open(trainer, before, seed)
            except FederationError as error:
                failure = error
        key, self._run, spending, self._lines = Collectives(trainer).gather_or_raise(opened, failure)[0]
        self._secret = SecretKey(key)
        self.spending = Spending()
        self.spending.load_state_dict(spending)
        if self.noise_seed is not None:
            rank_zero_warn(SIMULATED.format(self.noise_seed))

    def _open(self, trainer: Trainer, before: Mapping[str, Any], seed: int) -> tuple[bytes, str, Entry, int]:
        """Return the key, the name of the run, its spending, and the number of lines in its ledger."""
        chosen = self.noise_seed
        key = (SecretKey.draw() if chosen is None else SecretKey.from_seed(chosen, seed)).reveal()
        run = str(before.get("run") or secrets.token_hex(8))
        if not self._written:
            return key, run, before.get("spending") or Spending().state_dict(), 0
        if "://" in str(trainer.default_root_dir):
            raise ConfigurationError(
                f"'trainer.default_root_dir' is {trainer.default_root_dir}, but the privacy ledger must be synced to a disk. "
                "Use a folder on this machine."
            )
        self._ledger = PrivacyLedger(Path(trainer.default_root_dir), run)
        spending, lines = self._ledger.read()
        if lines < before.get("lines", 0):
            there = f"has {lines} lines of this run" if self._ledger.path.exists() else "does not exist"
            raise CheckpointError(
                f"The privacy ledger '{self._ledger.path}' {there}, but the checkpoint was written after {before['lines']} "
                "lines, so the privacy spent cannot be counted. Set 'trainer.default_root_dir' to the folder of the run that "
                "wrote the checkpoint, copy its ledger here, or start again without 'ckpt_path'."
            )
        return key, run, spending.state_dict(), lines

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: with a ledger its length, otherwise the sums, and never the key."""
        if not self.active:
            return {}
        kept = {"lines": self._lines} if self._written else {"spending": self.spending.state_dict()}
        return {"run": self._run, **kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Store the state of a checkpoint for :meth:`begin`."""
        self._loaded = state

    def forget_loaded(self) -> None:
        """Discard the state of a checkpoint for a fit that ended before :meth:`begin`."""
        self._loaded = None

    def conclude(self) -> None:
        """Warn at the end of a fit if its noise was simulated."""
        if self.noise_seed is not None:
            rank_zero_warn(f"The run has finished. {SIMULATED.format(self.noise_seed)}")

    # ---------------------------------------------------------------- releases

    def charge(self, trainer: Trainer, entry: Entry) -> None:
        """Count a release before it happens, and write it to the disk; call it on every rank.

        Raises:
            CheckpointError: if the ledger cannot be written; other ranks raise ClientError.
        """
        if self._written:
            failure = None
            try:
                if self._ledger is not None:
                    self._ledger.append(entry)
            except FederationError as error:
                failure = error
            Collectives(trainer).gather_or_raise(None, failure)
        self._lines += 1
        self.spending.add(entry)

    def epsilon_of(self, client: int) -> float | None:
        """Return the epsilon that a client has spent on each of its examples; None if examples are not private."""
        if self.examples is None:
            return None
        return self._epsilon(self.spending.rates.get(client, 0.0), self.spending.steps.get(client, 0))

    def figures(self, population: int) -> dict[str, float]:
        """Return the privacy that the run has spent so far, for the log.

        Args:
            population: the number of clients in the federation.
        """
        figures: dict[str, float] = {}
        if self.clients is not None:
            figures["epsilon_of_clients"] = self.clients.epsilon(self.spending, population)
        if self.examples is not None:
            spent = {(self.spending.rates[client], steps) for client, steps in self.spending.steps.items()}
            figures["epsilon_of_examples"] = max((self._epsilon(*one) for one in spent), default=0.0)
        return figures | ({} if self.noise_seed is None else {"noise_is_simulated": 1.0})

    def _epsilon(self, rate: float, steps: int) -> float:
        assert self.examples is not None
        return epsilon_of_examples(self.examples.noise_multiplier, rate, steps, self.examples.delta)
