"""Record the logs and metric updates of a stacked training step inside vmap, and replay them for each client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from fl_lightning.clients.engines.log_recorder import LogRecorder
from fl_lightning.compat.torch import tree_flatten, tree_unflatten
from fl_lightning.errors import EngineError

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
                vars(metric)[method] = self._note(metric, method)
            vars(metric)["compute"] = self._refuse(metric)
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

    def _note(self, metric: Any, method: str) -> Callable[..., Any]:
        def note(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((metric, method, args, kwargs))
            return None if method == "update" else _NO_REPLY

        return note

    def _refuse(self, metric: Any) -> Callable[..., Any]:
        def refuse() -> None:
            raise EngineError(
                f"The training step computes a {type(metric).__name__}, but stacked clients can do so only at the end of an "
                "epoch. Log the metric itself, or set 'federation.local.engine' to 'fabric' or 'trainer'."
            )

        return refuse


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
