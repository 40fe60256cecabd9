"""What a training step of a stack logs and gives to metrics: noted inside of vmap, repeated for each client afterwards."""

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
    """Within it, the module's ``log`` and its metrics only write down what they are given.

    Args:
        module: the clients' module.

    Attributes:
        calls: metric or None for ``log``, method, arguments, keyword arguments.
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
                if method in before:  # torchmetrics wraps some for each instance
                    attributes[method] = before[method]

    def _log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if value is _NO_REPLY:
            raise EngineError(
                f"'{name}' logs what a metric's call gives back, which stacked clients do not have yet. Log the metric itself: "
                f"self.log('{name}', self.metric)."
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
                f"The training step computes a {type(metric).__name__}, which stacked clients have only at the end of an "
                "epoch. Log the metric itself, or set 'federation.local.engine' to 'fabric' or 'trainer'."
            )

        return refuse


def _outermost_metrics(module: nn.Module) -> list[nn.Module]:
    found: list[nn.Module] = []
    for child in module.children():
        found += [child] if isinstance(child, Metric | MetricCollection) else _outermost_metrics(child)
    return found


def tensors_of(calls: list[Any]) -> tuple[list[Tensor], list[Any]]:
    """The tensors in what was noted, and the rest: the former leave vmap, the latter are the same for all clients."""
    leaves, spec = tree_flatten([(args, kwargs) for _, _, args, kwargs in calls])
    tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]
    rest = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return tensors, [[call[:2] for call in calls], rest, [isinstance(leaf, Tensor) for leaf in leaves], spec]


def replay(noted: list[Any], position: int, recorder: LogRecorder) -> None:
    """Repeat for one client of the stack what its step logged and gave to metrics."""
    (calls, rest, is_tensor, spec), tensors = noted
    own = iter(tensors)
    leaves = [next(own)[position] if flag else leaf for flag, leaf in zip(is_tensor, rest, strict=True)]
    for (metric, method), (args, kwargs) in zip(calls, tree_unflatten(leaves, spec), strict=True):
        if metric is None:
            recorder.log(*args, **kwargs)
        else:
            getattr(metric, method)(*args, **kwargs)
