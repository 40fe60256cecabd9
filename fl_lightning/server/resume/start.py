"""Start a new or resumed fit: record its settings, and compare them with those of the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from fl_lightning.clients.isolation.python_state import PythonState
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import CheckpointError
from fl_lightning.server.resume.changes import Change, in_words
from fl_lightning.server.resume.fingerprint import fingerprint
from fl_lightning.server.run_state import RunState
from fl_lightning.server.untouched import Untouched
from fl_lightning.settings.federation import FederationSettings

_SERVER = "federation.server_optimizer"


class Start:
    """Record a run's settings before its first round, before a checkpoint or another callback changes anything.

    Args:
        owner: the federation's settings.
        run: the state of the run, which records them.
        trainer: the user's Trainer.
        data: the data, set up for a fit.
        build: a function that builds the server's optimizer from the module's parameters.
        module: the user's module, of which no method may be replaced when the methods below are called.

    Attributes:
        untouched: the settings that the server's optimizer had at the start or in the checkpoint.
    """

    def __init__(
        self,
        owner: FederationSettings,
        run: RunState,
        trainer: Trainer,
        data: FederatedDataModule,
        build: Callable[[Any], Optimizer],
        module: LightningModule,
    ) -> None:
        self._owner, self._run, self._trainer, self._data = owner, run, trainer, data
        self._build, self._module = build, module
        self._attributes: PythonState | None = None
        self._groups: list[dict[str, Any]] | None = None
        self.untouched = Untouched()

    def server_optimizer(self) -> Optimizer:
        """Return the server's optimizer, which Lightning requests before the first round."""
        self._data.serve_rounds(True)
        optimizer = self._build(self._module.parameters())
        if self._run.fingerprint is None:
            self._record(optimizer)
        self.untouched.note(optimizer, self._groups)
        return optimizer

    def load(self, checkpoint: dict[str, Any]) -> None:
        """Compare a checkpoint before any of it is restored, and give the server's optimizer its new settings.

        Raises:
            CheckpointError: if this run cannot continue it.
        """
        self._attributes = PythonState(self._module)
        if "callbacks" not in checkpoint:
            return  # a weights-only checkpoint, which Lightning refuses
        state = checkpoint["callbacks"].get(self._owner.state_key)
        if not state:
            raise CheckpointError(
                "The checkpoint was written without a federation, so its optimizer is not the server's. Load its weights into "
                "the module (load_from_checkpoint) and start without 'ckpt_path', or set 'federation.enabled' to false."
            )
        optimizer = self._build(self._module.parameters())
        self._record(optimizer)
        device = self._trainer.strategy.root_device
        found = self._run.compare(state, device, other_weights(self._module, checkpoint["state_dict"]))
        _renew(checkpoint["optimizer_states"], optimizer, found)
        self._groups = checkpoint["optimizer_states"][0]["param_groups"]
        if found:
            rank_zero_warn(f"Resumed with changed settings ('federation.resume_changed'): {in_words(found)}.")
        assert self._run.fingerprint is not None
        if self._run.fingerprint.unseen:
            rank_zero_info(f"Not compared with the checkpoint: {'; '.join(self._run.fingerprint.unseen)}.")

    def give_attributes(self, client: LightningModule) -> None:
        """Let the clients' copy of the module begin with the attributes that the run had before a checkpoint was loaded.

        They are those with which the resumed run began, whatever the server's module has restored.
        """
        if self._attributes is not None:
            self._attributes.give(client)

    def _record(self, optimizer: Optimizer) -> None:
        self._run.fingerprint = fingerprint(self._owner, self._trainer, self._module, self._data, optimizer)


def refuse_federations(checkpoint: dict[str, Any], key: str) -> None:
    """Refuse to continue a federation's checkpoint without a federation.

    Args:
        checkpoint: the checkpoint as it was read.
        key: the key of the federation's state in the checkpoint.

    Raises:
        CheckpointError: if a federation wrote it, because the module's optimizer would get the server's learning rate.
    """
    if checkpoint.get("callbacks", {}).get(key):
        raise CheckpointError(
            "The checkpoint was written by a federation, but 'federation.enabled' is false, and the module's optimizer cannot "
            "continue from the server's. Set it to true, or load the weights into the module (load_from_checkpoint) and start "
            "without 'ckpt_path'."
        )


def other_weights(module: LightningModule, saved: dict[str, Tensor]) -> str:
    """Describe how the weights of a checkpoint differ from the module's in names or shapes; empty if they do not.

    Modules with their own rules for loading weights (``strict_loading``, ``on_load_checkpoint``) are left to Lightning.
    """
    if not module.strict_loading or type(module).on_load_checkpoint is not LightningModule.on_load_checkpoint:
        return ""
    own = {name: _shape(value) for name, value in module.state_dict().items()}
    theirs = {name: _shape(value) for name, value in saved.items()}
    for name in [*own, *(name for name in theirs if name not in own)]:
        if name not in own or name not in theirs:
            side = "the checkpoint" if name in theirs else "this run's model"
            return f"Only {side} has weights '{name}', so the models differ."
        if own[name] != theirs[name] and own[name] is not None:
            return f"'{name}' has shape {theirs[name]} in the checkpoint, but {own[name]} in this run, so the models differ."
    return ""


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor; None for extra state, and for what has no values before its first batch."""
    return tuple(value.shape) if isinstance(value, Tensor) and not is_lazy(value) and value.numel() else None


def _renew(states: list[dict[str, Any]], optimizer: Optimizer, found: Sequence[Change]) -> None:
    """Apply changed settings of the server's optimizer, which the checkpoint's would otherwise overwrite.

    The optimizer keeps its state if only numbers change. With another class, or if an option such as ``amsgrad`` is switched
    on or off, it starts with new state.
    """
    changed = [change for change in found if change.name.startswith(_SERVER)]
    if not changed:
        return
    new = optimizer.state_dict()
    of_size = all(change.name != _SERVER and bool(change.before) == bool(change.now) for change in changed)
    states[:] = [{**states[0], "param_groups": new["param_groups"]} if of_size else new]
