"""Hold the one copy of the module per rank that clients train and that models are evaluated in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.nn.parameter import is_lazy

from fl_lightning.clients.module_state import PythonState
from fl_lightning.compat.torch import buffers_of, parameters_of, parts_of
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.model_parts import client_state
from fl_lightning.functional.model_state import ModelState, differs
from fl_lightning.functional.recycling import emptied
from fl_lightning.messages import ServerModel
from fl_lightning.types import Snapshot


class ResidentModel:
    """Hold a module, and track which model it contains, so that no model is loaded twice.

    Training begins with :meth:`fill` and ends with :meth:`snapshot`. In between, the content counts as unknown.

    Args:
        module: the clients' copy of the user's module.
        channels_last: whether to keep the weights of convolutions in channels_last order.

    Attributes:
        server: the global model published last; not there before the first one.
    """

    server: ServerModel

    def __init__(self, module: LightningModule, channels_last: bool = False) -> None:
        if channels_last:
            module.to(memory_format=torch.channels_last)
        self.module = module
        self.builds_networks = is_overridden("setup", module) or is_overridden("configure_model", module)
        """Whether a fit builds the networks again."""
        self._state = None if self.builds_networks else ModelState(module)
        self._content: object | None = None
        self._resting: list[tuple[torch.UntypedStorage, int]] = []
        self._preloaded: tuple[tuple[int, float], ...] = ()
        self._warned: set[str] = set()
        self._empty = {  # registered without a tensor
            f"{prefix}.{name}".lstrip(".")
            for prefix, part in parts_of(module).items()
            for name, buffer in buffers_of(part).items()
            if buffer is None
        }
        self.python = PythonState(module)
        """The attributes of the module that are not tensors of the model."""

    def publish(self, model: ServerModel) -> None:
        """Take a new global model, which :meth:`load` copies when it is needed."""
        known: ServerModel | None = getattr(self, "server", None)
        if known is model:
            return
        if known is not None and known.layout == model.layout:  # a decoded layout is a new object each time
            model = replace(model, layout=known.layout)
        self.server = model
        if self._state is not None:
            self._state.follow(model.layout)
            self._state.take_shapes(model.tensors)

    def view(self) -> ModelState:
        """Return the view of the module's tensors, arranged like the server's."""
        state = self._state or ModelState(self.module)
        if self._state is None:
            state.follow(self.server.layout)
        return state

    def load(self, model: Snapshot | None = None, own: Mapping[str, Tensor] | None = None) -> LightningModule:
        """Load a model to evaluate, unless the module contains it already, and restore the module's attributes.

        Args:
            model: the model; None for the global one.
            own: the tensors that a client holds, by name; by default those of a client that has not trained yet.

        Returns:
            The module with the model in it.
        """
        wanted = self.server if model is None else model.version
        if wanted is not self._content:
            self.fill(self.view(), model, own)
            self._content = wanted
        elif self.server.first:  # the content is the same for all clients except for what each one keeps
            self.view().set_held({**self.server.first, **(own or {})})
        self.python.restore()
        return self.module

    def fill(self, state: ModelState, model: Snapshot | None, own: Mapping[str, Tensor] | None = None) -> None:
        """Copy the global model into a view of the module, and then the tensors of another model if given.

        Args:
            state: the view of the module.
            model: the model; None for the global one.
            own: the tensors that a client holds; see :meth:`load`.
        """
        self._content = None
        for storage, size in self._resting:
            storage.resize_(size)
        self._resting = []
        state.copy_from(self.server.tensors, self.server.layout)
        if model is not None:
            state.load(model)
        if self.server.first:
            state.set_held({**self.server.first, **(own or {})})

    def rest(self) -> int:
        """Free the memory of the parameters until a model is loaded, where no client trains and maybe none is evaluated.

        Returns:
            How many bytes were freed.
        """
        self._content = None
        self._resting = emptied(self.module.parameters())
        return sum(size for _, size in self._resting)

    def preload(self, model: Snapshot | None, own: Mapping[str, Tensor] | None) -> None:
        """Copy a model into the module before a fit, as :meth:`fill` does, if the module has all of its tensors already.

        ``setup``, ``configure_model`` and optimizers must not find the weights of the client before. After them, call
        :meth:`complete`.
        """
        self._preloaded = ()
        if self.builds_networks:
            tensors = {**parameters_of(self.module), **dict(self.module.named_buffers())}
            if any(name not in tensors or is_lazy(tensors[name]) for name in self.server.tensors):
                return
        view = self.view()
        view.follow(self.server.layout)  # not as the client before left it
        self.fill(view, model, own)
        self._preloaded = view.changes()

    def complete(self, state: ModelState, model: Snapshot | None, own: Mapping[str, Tensor] | None) -> None:
        """Copy a model into a view of the module again, unless nothing has touched it since :meth:`preload`."""
        if self.builds_networks or state.changes() != self._preloaded:
            self.fill(state, model, own)

    def snapshot(self, state: ModelState) -> Snapshot:
        """Return a copy of the model in the module, which :meth:`load` will recognise.

        Raises:
            ConfigurationError: if training has created parameters that the global model lacks, or changed a buffer's shape.
        """
        self._refuse_changes(state)
        self._tidy_buffers(state)
        model = Snapshot(state.vector(), state.counters(), state.moved(self.server.tensors))
        self._content = model.version
        return model

    def _refuse_changes(self, state: ModelState) -> None:
        """Refuse parameters and shapes that the global model does not have, which could not be averaged."""
        known, held, parameters = self.server.tensors, self.server.layout.held, parameters_of(self.module)
        for name in parameters:
            if name not in known and name not in held:
                raise ConfigurationError(
                    f"Training created the parameter '{name}' of {type(self.module).__name__}, which the global model lacks, "
                    "so it would never be averaged. Build it in '__init__', or run one batch through that part before the fit."
                )
        found = state.ids()
        for name, parameter in parameters.items():
            if id(parameter) not in found:
                raise ConfigurationError(
                    f"Training replaced the layer of '{name}' of {type(self.module).__name__}, so its weights would never be "
                    "averaged. Keep the layer, and change its parameters in place, as with 'reset_parameters'."
                )
        for name, now in state.resized(self.server.tensors).items():
            raise ConfigurationError(
                f"Training changed the shape of the buffer '{name}' of {type(self.module).__name__} from "
                f"{tuple(self.server.tensors[name].shape)} to {tuple(now.shape)}, so it cannot be averaged. Register it "
                "with its final shape, for example by one batch through the module before the fit, or with 'persistent=False'."
            )

    def _tidy_buffers(self, state: ModelState) -> None:
        """Remove the buffers that training has created, as other attributes of a client's turn, and warn once.

        Warn once, too, of buffers that are not sent back, if training changes them and no client keeps them.
        """
        parts, known, held = parts_of(self.module), self.server.tensors, self.server.layout.held
        created = [
            (path, part, name)
            for prefix, part in parts.items()
            for name, buffer in buffers_of(part).items()
            if buffer is not None and (path := f"{prefix}.{name}".lstrip(".")) not in known and path not in held
        ]
        for path, part, name in created:
            if path in self._empty:
                setattr(part, name, None)
            else:
                delattr(part, name)
        names = sorted({path for path, *_ in created} - self._warned)
        if names:
            self._warned.update(names)
            rank_zero_warn(
                f"Training created the buffer {', '.join(map(repr, names))} of {type(self.module).__name__}, which the global "
                "model lacks, so it is removed after each client's turn. To let the federation average it, register it with "
                "its shape in '__init__'."
            )
        *_, unsent = state.names()
        if self._warned.issuperset(unsent):
            return
        kept = {f"{prefix}.{name}".lstrip(".") for prefix, part in parts.items() for name in client_state(part)}
        own = state.tensors() if set(unsent) - kept else {}
        changed = sorted(name for name in own if name in unsent and name not in kept and differs(own[name], known[name]))
        if not self._warned.issuperset(changed):
            self._warned.update(changed)
            rank_zero_warn(
                f"Training changed the buffer {', '.join(map(repr, changed))} of {type(self.module).__name__}, which is not "
                "sent back (not persistent, or complex), so every client's turn finds the server's. To let each "
                "client keep it, name it in an attribute of the part that owns it: "
                f"client_state = ({changed[0].rpartition('.')[2]!r},)."
            )
