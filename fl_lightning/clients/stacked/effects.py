"""Give each stacked client its own logs, metrics and dropout masks of a step, and refuse other traces that a step leaves."""

from __future__ import annotations

import itertools
import pickle
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torchmetrics import Metric, MetricCollection

from fl_lightning.clients.attribute_values import PLAIN
from fl_lightning.clients.fabric.log_recorder import LogRecorder
from fl_lightning.compat.torch import buffers_of, parameters_of, parts_of, times_changed, tree_flatten, tree_unflatten
from fl_lightning.errors import EngineError, FederationError
from fl_lightning.functional.description import is_users, own_class
from fl_lightning.functional.seeding import GENERATORS

REMEDY = "Set 'federation.local.engine' to 'fabric' or 'trainer'."
_NO_REPLY = object()


class Notes:
    """Make the module's ``log`` and its metrics record their arguments inside this context.

    Args:
        module: the clients' module.

    Attributes:
        calls: the recorded calls, each as metric (None for ``log``), method, arguments and keyword arguments.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module
        self.calls: list[tuple[Any, str, Any, dict[str, Any]]] = []
        self._metrics = list(_outermost_metrics(module))

    def __enter__(self) -> Notes:
        self.calls = []
        vars(self._module)["log"] = self._log
        self._before = [(vars(metric), dict(vars(metric))) for metric in self._metrics]
        for metric in self._metrics:
            for method in ("update", "forward"):
                vars(metric)[method] = partial(self._note, metric, method)
            vars(metric)["compute"] = partial(self._refuse, metric)
        return self

    def __exit__(self, *_: Any) -> None:
        vars(self._module).pop("log")
        for attributes, before in self._before:
            for method in ("update", "forward", "compute"):
                del attributes[method]
                if method in before:  # torchmetrics wraps some methods per instance
                    attributes[method] = before[method]

    def _log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if value is _NO_REPLY:
            raise EngineError(
                f"'{name}' logs the result of calling a metric, which stacked clients do not have during a step. Log the "
                f"metric itself: self.log('{name}', self.metric)."
            )
        if isinstance(value, int | float):
            value = torch.tensor(value, dtype=torch.get_default_dtype())
        self.calls.append((None, "log", (name, value, *args), kwargs))

    def _note(self, metric: Any, method: str, /, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((metric, method, args, kwargs))
        return None if method == "update" else _NO_REPLY

    def _refuse(self, metric: Any) -> None:
        raise EngineError(
            f"The training step computes a {type(metric).__name__}, but stacked clients can do so only at the end of an "
            "epoch. Log the metric itself, or set 'federation.local.engine' to 'fabric' or 'trainer'."
        )


def _outermost_metrics(module: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    for child in module.children():
        found += [child] if isinstance(child, Metric | MetricCollection) else _outermost_metrics(child)
    return found


def tensors_of(calls: list[Any]) -> tuple[list[Tensor], list[Any]]:
    """Split recorded calls into tensors, which leave vmap, and the rest, which is the same for all clients."""
    leaves, spec = tree_flatten([(args, kwargs) for _, _, args, kwargs in calls])
    tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]
    rest = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return tensors, [[call[:2] for call in calls], rest, [isinstance(leaf, Tensor) for leaf in leaves], spec]


def replay(noted: list[Any], position: int, recorder: LogRecorder) -> None:
    """Replay the logs and metric updates of one client of the stack."""
    (calls, rest, is_tensor, spec), tensors = noted
    own = iter(tensors)
    leaves = [next(own)[position] if flag else leaf for flag, leaf in zip(is_tensor, rest, strict=True)]
    for (metric, method), (args, kwargs) in zip(calls, tree_unflatten(leaves, spec), strict=True):
        if metric is None:
            recorder.log(*args, **kwargs)
        else:
            getattr(metric, method)(*args, **kwargs)


_PLAIN: tuple[Any, ...] = (F.dropout, torch.dropout, torch.dropout_)
_DATA: tuple[Any, ...] = (torch.Tensor.data.__set__,)  # type: ignore[attr-defined]
"""Setting ``tensor.data`` to a client's tensor under vmap can end the process instead of raising an error."""
_FEATURES: tuple[Any, ...] = (F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout, torch.feature_dropout_)


class MaskSpec:
    """Describe one call of dropout in a training step.

    Args:
        like: a tensor of the mask's shape, layout in memory, dtype and device.
        p: the probability of a zero, in (0, 1].
    """

    def __init__(self, like: Tensor, p: float) -> None:
        self.p = p
        self._shape, self._stride = tuple(like.shape), tuple(like.stride())
        self._dtype, self._device = like.dtype, like.device

    @property
    def key(self) -> tuple[tuple[int, ...], float]:
        """Return a key that is equal for calls that accept the same masks."""
        return self._shape, self.p

    def draw(self, generator: torch.Generator) -> Tensor:
        """Draw a mask as torch does on a CPU: Bernoulli(1 - p), divided by 1 - p."""
        mask = torch.empty_strided(self._shape, self._stride, dtype=self._dtype, device=generator.device)
        if self.p == 1:
            return mask.zero_().to(self._device)
        return mask.bernoulli_(1 - self.p, generator=generator).div_(1 - self.p).to(self._device)


class StackedDropout(TorchFunctionMode):
    """Make dropout use the given masks inside this context, or record the masks that it needs.

    Args:
        masks: the masks of one client, in the order of the calls; None to record the calls.
        expected: the calls that the masks were drawn for.
    """

    def __init__(self, masks: Sequence[Tensor] | None, expected: Sequence[MaskSpec] = ()) -> None:
        super().__init__()
        self._expected = expected
        self.specs: list[MaskSpec] = []
        self._masks = masks
        self._used = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace dropout, refuse what cannot be stacked, and leave every other function unchanged."""
        kwargs = kwargs or {}
        if func in _PLAIN:
            return self._dropout(None, *args, **kwargs)
        if func in _FEATURES:
            return self._dropout(func, *args, **kwargs)
        if func in _DATA:
            raise EngineError(f"Stacked clients do not support setting 'tensor.data' in 'training_step'. {REMEDY}")
        if func in (F.alpha_dropout, F.feature_alpha_dropout):
            raise EngineError(f"Stacked clients do not support alpha dropout. {REMEDY}")
        return func(*args, **kwargs)

    def _dropout(
        self,
        features: Callable[..., Any] | None,
        input: Tensor,
        p: float = 0.5,
        training: bool | None = None,
        inplace: bool = False,
        train: bool | None = None,
    ) -> Tensor:
        active = training if training is not None else train if train is not None else True
        if not active or p == 0 or not input.numel():
            return input
        if self._masks is None:
            self.specs.append(MaskSpec(torch.empty_like(input) if features is None else _of_features(features, input), p))
            return input.clone()
        if self._used >= len(self._masks) or self._expected[self._used].p != p:
            raise EngineError(
                "A call of dropout differs from the trial run of the training step, so it depends on something that stacked "
                "clients would share. Set 'federation.local.engine' to 'fabric' or 'trainer'."
            )
        mask = self._masks[self._used]
        self._used += 1
        return input.mul_(mask) if inplace else input * mask


def _of_features(function: Callable[..., Any], input: Tensor) -> Tensor:
    """Return a tensor with one number per example and channel, or per channel if torch reads the shape as one example."""
    alone = (function is F.dropout1d and input.ndim == 2) or (function is F.dropout3d and input.ndim == 4)
    kept = 1 if alone else 2
    return input.new_empty((*input.shape[:kept], *(1 for _ in input.shape[kept:])))


_OF_TORCH = vars(nn.Module()).keys() - {"training"}
_OF_LIGHTNING = vars(LightningModule()).keys() - {"_hparams"} | {"_hparams_initial", "log", "configure_callbacks"}
_LARGEST = 2**20
"""The bytes up to which an array is read; what is larger is data rather than state."""
_RANDOM = "random numbers"


class Traces:
    """Compare what a module holds before and after a part of the training.

    This covers the attributes of the module and its parts, those of its classes, and the data in them: numbers, texts, tensors,
    arrays, containers, generators of random numbers, and objects of the user's classes. What a function holds is not covered,
    such as closures, globals and caches: of these, :class:`.StackedStep` sees what changes the loss at once.

    Args:
        module: the clients' module.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module

    def now(self) -> dict[str, Any]:
        """Return what the module holds, by name, and the states of the global random numbers."""
        parts = parts_of(self._module)
        parameters = parameters_of(self._module, parts)
        buffers = [buffer for part in parts.values() for buffer in buffers_of(part).values()]
        picture = _Picture([*parts.values(), *parameters.values(), *buffers])
        found = {name: picture.of(value) for name, value in self._held(parts)}
        found |= {name: _versions(parameter) for name, parameter in parameters.items()}
        numpy: Any = np.random.get_state()
        found[_RANDOM] = random.getstate(), numpy[1].tobytes(), numpy[2], torch.get_rng_state().numpy().tobytes()
        return found

    def _held(self, parts: Mapping[str, nn.Module]) -> Iterator[tuple[str, Any]]:
        classes: dict[type, None] = {}
        for prefix, part in parts.items():
            if isinstance(part, Metric | MetricCollection):
                continue
            ours = own_class(type(part)) is type(part)  # this package's parts keep caches alone behind underscores
            hidden = _OF_LIGHTNING | _OF_TORCH if isinstance(part, LightningModule) else _OF_TORCH
            for name, value in vars(part).items():
                if name == "training" or not (name in hidden or (ours and name.startswith("_"))):
                    yield f"{prefix}.{name}".lstrip("."), value
            classes.update(dict.fromkeys(kind for kind in type(part).__mro__ if is_users(kind)))
        for kind in classes:
            yield from ((f"{kind.__name__}.{name}", value) for name, value in vars(kind).items())

    @contextmanager
    def unchanged(self, who: str) -> Iterator[None]:
        """Refuse a change in the block, also if it has led to another error; see :meth:`refuse`."""
        before = self.now()
        try:
            yield
        except FederationError:
            raise
        except Exception:
            self.refuse(before, who)
            raise
        self.refuse(before, who)

    def refuse(self, before: dict[str, Any], who: str) -> None:
        """Refuse a change.

        Args:
            before: what :meth:`now` returned before.
            who: what may have changed something, as the beginning of a sentence.

        Raises:
            EngineError: if something has changed; it names the first.
        """
        now = self.now()
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if changed:
            what = "draws random numbers from torch, NumPy or Python's random"
            if changed[0] != _RANDOM:
                what = f"changes '{changed[0]}' or what it refers to"
            raise EngineError(f"{who} of {type(self._module).__name__} {what}, which stacked clients would share. {REMEDY}")


class _Picture:
    """Describe data by values that can be compared; what is not data, or described elsewhere, counts as unchanged.

    Args:
        known: the module's own parts and tensors, which are described elsewhere.
    """

    def __init__(self, known: Sequence[Any]) -> None:
        self._known = {id(one) for one in known}
        self._seen: set[int] = set()

    def of(self, value: Any) -> Any:
        """Return a description of a value and everything that it refers to."""
        if isinstance(value, PLAIN):
            return repr(value)
        if id(value) in self._known:
            return id(value)
        if id(value) in self._seen:
            return None
        self._seen.add(id(value))
        inside = _inside(value)
        return inside if inside is None or isinstance(inside, bytes | str) else [self.of(one) for one in inside]


def _inside(value: Any) -> Any:
    """Return the content of a value as bytes or text, or the values that it consists of; None if it is not data."""
    if isinstance(value, Tensor):
        return _versions(value)
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes <= _LARGEST and not value.dtype.hasobject else None
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, GENERATORS):
        return pickle.dumps(value)
    if isinstance(value, itertools.count):
        return repr(value)
    if isinstance(value, dict):
        return [*value.keys(), *value.values(), *_attributes(value)]
    if isinstance(value, list | tuple | deque | set | frozenset):
        return [*value, *_attributes(value)]
    return _attributes(value) if isinstance(value, nn.Module) or is_users(type(value)) else None


def _attributes(value: Any) -> list[Any]:
    """Return the attributes of an object, and those of its class if it is the user's."""
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    own = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]
    return own + ([*vars(type(value)).values()] if is_users(type(value)) else [])


def _versions(tensor: Tensor) -> str:
    return f"{id(tensor)} {times_changed(tensor)} {tensor.requires_grad}"


class InPlace:
    """Notice a step that changes its parameters or its batch in place, of which each client has its own.

    Args:
        module: the clients' module.
        parameters: the parameters of the step.
        leaves: the tensors of its batch.
    """

    def __init__(self, module: LightningModule, parameters: Mapping[str, Tensor], leaves: Sequence[Tensor]) -> None:
        self._module = module
        named = [*((f"'{name}'", tensor) for name, tensor in parameters.items()), *(("its batch", one) for one in leaves)]
        self._before = [(name, tensor, times_changed(tensor)) for name, tensor in named]

    def refuse(self) -> None:
        """Refuse a change.

        Raises:
            EngineError: if a tensor was changed; it names the first.
        """
        for name, tensor, before in self._before:
            if times_changed(tensor) != before:
                raise EngineError(
                    f"The training_step of {type(self._module).__name__} changes {name} in place, which stacked clients do not "
                    f"support. Compute a new tensor, or set 'federation.local.engine' to 'fabric' or 'trainer'."
                )
