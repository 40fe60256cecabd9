"""Build objects from values that came over the network, without a parser that imports what a value names.

A value is plain (None, bool, int, float, str, lists and mappings of these) or ``{"class_path": ..., "init_args": {...}}``.
A class is imported only if its dotted path is on an exact list. Functions, paths and URLs are never accepted.

Each class of the list was looked at for what its tensors and numbers can carry of a site's rows: what leaves with them is a
model's change, sums over many rows such as control variates, and figures that the site's policy allows. A new class is added
to one of the tables by hand, and a strategy has ``at_sites`` in its line of :mod:`fl_lightning.strategies`; a test finds those
that are in none.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from importlib import import_module
from typing import Any

from fl_lightning import options
from fl_lightning.core.option import OptionSettings
from fl_lightning.errors import ConfigurationError
from fl_lightning.strategies import STRATEGIES

OPTIONS: dict[str, type[OptionSettings]] = {
    kind.setting: kind
    for kind in (getattr(options, name) for name in options.__all__)
    if issubclass(kind, OptionSettings) and kind.at_sites
}
"""The options that sites build, by the setting that holds them."""
_PARTS = {
    "tasks": "ClassificationTask LossAdaptation RegressionTask",
    "models": "DensityCount FrozenBackbone KerasCNN LeNet MLP ResNet18 Standardized UNet VGG19",
    "losses": "CrossEntropy F1WeightedCrossEntropy HalfSquaredError Hinge MetricWeightedCrossEntropy ProximalLoss RobustLoss",
    "metrics": "CalibrationCurve DiagnosticOddsRatio PercentageError",
    "optimizers": "Yogi",
    "routes": "FedCyclic FedStar LocalOnly Mediators RingFed ServerRoute WarmStart",
    "strategies": " ".join(one.strategy for one in STRATEGIES if one.at_sites),
    "options": "ClientPrivacy ExamplePrivacy PartialWork",
    "settings": "Faults LocalTraining",
    "transforms": "ClipUpdate HalfPrecision Quantize TopK",
}
_TORCH = {
    "torch.nn": (
        "BCELoss BCEWithLogitsLoss CrossEntropyLoss HuberLoss L1Loss MSELoss MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss "
        "PoissonNLLLoss SmoothL1Loss SoftMarginLoss"
    ),
    "torch.optim": "ASGD Adadelta Adagrad Adam AdamW Adamax NAdam RAdam RMSprop Rprop SGD",
    "torch.optim.lr_scheduler": (
        "ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts ExponentialLR LinearLR MultiStepLR PolynomialLR StepLR"
    ),
}
_TORCHMETRICS = {
    "torchmetrics.classification": (
        "BinaryAUROC BinaryAccuracy BinaryAveragePrecision BinaryCohenKappa BinaryConfusionMatrix BinaryF1Score "
        "BinaryMatthewsCorrCoef BinaryPrecision BinaryPrecisionRecallCurve BinaryROC BinaryRecall BinarySpecificity "
        "MulticlassAUROC MulticlassAccuracy MulticlassAveragePrecision MulticlassCohenKappa MulticlassConfusionMatrix "
        "MulticlassF1Score MulticlassMatthewsCorrCoef MulticlassPrecision MulticlassPrecisionRecallCurve MulticlassROC "
        "MulticlassRecall MulticlassSpecificity"
    ),
    "torchmetrics.regression": "MeanAbsoluteError MeanSquaredError PearsonCorrCoef R2Score SpearmanCorrCoef",
}
"""Metrics to which every example contributes: no largest or smallest error, which is one row's, and no maximum over bins."""
_LOCATION = re.compile(r"(?:^|_)(?:weights|path|paths|root|dir|dirpath|folder|file|filename|url|checkpoint|ckpt)$")
_PLAIN_TEXT = re.compile(r"[\w .,:=+%()-]{0,200}")
_DEPTH = 30
_CALLABLE = typing.get_origin(Callable[[], None])


def default_classes() -> frozenset[str]:
    """Return all dotted paths that a site accepts by default."""
    own = {f"fl_lightning.{name}" for names in _PARTS.values() for name in names.split()}
    own |= {f"fl_lightning.{kind.__name__}" for kind in OPTIONS.values()}
    return frozenset(own | {f"{module}.{name}" for module, names in (_TORCH | _TORCHMETRICS).items() for name in names.split()})


class RefusedError(ConfigurationError):
    """A site does not accept what a server sent."""


def _is_class(value: Any) -> bool:
    return isinstance(value, Mapping) and "class_path" in value


class Recipe:
    """Build objects from values.

    Args:
        allowed: the dotted paths of the classes that may be imported.
    """

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(allowed)

    def check(self, value: Any, where: str, depth: int = 0) -> None:
        """Refuse values of other kinds, classes that are not on the list, and text that could name a place.

        Nothing is imported.

        Raises:
            RefusedError: naming the setting.
        """
        if depth > _DEPTH:
            raise RefusedError(f"'{where[:80]}' is nested more than {_DEPTH} times.")
        if _is_class(value):
            self._require_accepted(value["class_path"], where)
            keys, value = set(value), value.get("init_args") or {}
            if keys - {"class_path", "init_args"} or not isinstance(value, Mapping):
                raise RefusedError(f"'{where}' has other keys than 'class_path' and 'init_args', a mapping.")
        if isinstance(value, Mapping):
            for name, item in value.items():
                if not isinstance(name, str) or not name.isidentifier() or name.startswith("__"):
                    raise RefusedError(f"'{where}' has the key {str(name)[:40]!r}. Use names of arguments.")
                if _LOCATION.search(name) and item is not None:
                    raise RefusedError(f"'{where}.{name}' names a place, which a server must not choose. Set it to null.")
                self.check(item, f"{where}.{name}", depth + 1)
        elif isinstance(value, list | tuple):
            for number, item in enumerate(value):
                self.check(item, f"{where}[{number}]", depth + 1)
        elif isinstance(value, str):
            if not _PLAIN_TEXT.fullmatch(value):
                raise RefusedError(f"'{where}' is text that could name a place or contain code. Use a plain word.")
        elif value is not None and not isinstance(value, bool | int | float):
            raise RefusedError(f"'{where}' is a {type(value).__name__}. Use plain values.")

    def _require_accepted(self, path: Any, where: str) -> None:
        if not isinstance(path, str) or path not in self._allowed:
            raise RefusedError(
                f"'{where}' is the class '{str(path)[:100]}', which this site does not accept. If you trust it, add this "
                "exact path to 'policy.code' of the site's data.yaml."
            )

    def build(self, value: Any, hint: Any, where: str) -> Any:
        """Return the object that a value describes; call :meth:`check` for the whole value first.

        Args:
            value: the value.
            hint: the type that the place needs.
            where: the name of the setting, for messages.

        Raises:
            RefusedError: if the value has another type.
        """
        kinds = _alternatives(hint)
        if _is_class(value):
            return self._object(value, kinds, where)
        if isinstance(value, Mapping):
            kind = next((kind for kind in kinds if is_dataclass(kind) and isinstance(kind, type)), None)
            if kind is not None:
                return self._call(kind, value, where)
            return {name: self.build(item, Any, f"{where}.{name}") for name, item in value.items()}
        if isinstance(value, list | tuple):
            several = next((one for one in kinds if typing.get_origin(one) in (list, tuple, Collection, Sequence)), list)
            inner = [one for one in typing.get_args(several) if one is not Ellipsis] or [Any]
            items = [self.build(one, inner[min(k, len(inner) - 1)], f"{where}[{k}]") for k, one in enumerate(value)]
            return tuple(items) if typing.get_origin(several) is tuple else items
        fits = any(value in typing.get_args(one) for one in kinds) or isinstance(value, _classes(kinds))
        if value is not None and not fits and any(_CALLABLE in (kind, typing.get_origin(kind)) for kind in kinds):
            raise RefusedError(f"'{where}' needs a class with 'class_path', but is {str(value)[:60]!r}. Functions are refused.")
        return float(value) if type(value) is int and float in kinds and int not in kinds else value

    def _object(self, value: Mapping[str, Any], kinds: Collection[Any], where: str) -> Any:
        """Return an object of a class on the list, or a function that creates it from further arguments."""
        path, arguments = value["class_path"], value.get("init_args") or {}
        self._require_accepted(path, where)
        module, _, name = path.rpartition(".")
        found = getattr(import_module(module), name)
        if not isinstance(found, type):
            raise RefusedError(f"'{where}' is '{path}', which is not a class.")
        wanted = _classes(kinds)
        made = [typing.get_args(kind)[-1] for kind in kinds if typing.get_origin(kind) is _CALLABLE]
        creates = _classes(kind for one in made for kind in _alternatives(one))
        if not issubclass(found, wanted) and issubclass(found, creates):
            return partial(found, **self._arguments(found, arguments, where))
        if not issubclass(found, wanted) and (wanted or creates):
            raise RefusedError(f"'{where}' is '{path}', but needs {' or '.join(k.__name__ for k in (*wanted, *creates))}.")
        return self._call(found, arguments, where)

    def _call(self, kind: Any, arguments: Mapping[str, Any], where: str) -> Any:
        built = self._arguments(kind, arguments, where)
        try:
            inspect.signature(kind).bind(**built)
        except TypeError as error:
            raise RefusedError(f"'{where}' does not fit {kind.__name__}: {error}.") from error
        return kind(**built)

    def _arguments(self, kind: Any, arguments: Mapping[str, Any], where: str) -> dict[str, Any]:
        hints = _hints(kind)
        return {name: self.build(item, hints.get(name, Any), f"{where}.{name}") for name, item in arguments.items()}


def _alternatives(hint: Any) -> list[Any]:
    """Return the members of a union, or the type itself; none if any will do."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [kind for member in typing.get_args(hint) for kind in _alternatives(member)]
    return [] if hint is Any else [hint]


def _classes(kinds: Iterable[Any]) -> tuple[type, ...]:
    """Return the classes among types; in Python 3.10, ``list[int]`` passes for one."""
    return tuple(kind for kind in kinds if isinstance(kind, type) and typing.get_origin(kind) is None)


def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a constructor's arguments, also those that it passes on to its base classes."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if "__init__" in vars(base) and base is not object:
            try:
                found |= typing.get_type_hints(base.__init__)
            except (NameError, TypeError, AttributeError):  # a name that is imported for type checkers only
                continue
    return found
