"""Turn the settings of a fit into values that sites can build them from: what :class:`Recipe` reads."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from pkgutil import resolve_name
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from fl_lightning.compat.pyyaml import load
from fl_lightning.core.option import OptionSettings
from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.site.contract import SECTIONS
from fl_lightning.flower.site.recipe import Recipe, default_classes
from fl_lightning.functional.description import constructor_arguments

_MISSING = object()


def configuration(trainer: Trainer, settings: Any, model: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the model and the clients' settings of this run as values.

    Args:
        trainer: the user's Trainer.
        settings: the federation's settings.
        model: the model as values, which only a Python script gives; the command line knows its own.

    Raises:
        ConfigurationError: if the model, or a setting, is not known as values.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    saved = next((callback for callback in callbacks if isinstance(callback, SaveConfigCallback)), None)
    if saved is not None:
        if model is not None:
            raise ConfigurationError("'federation.pool.model' is for Python scripts. Remove it: sites get the section 'model'.")
        return _typed(saved)
    if model is None:
        raise ConfigurationError(
            "Sites build the model from values, but a Python script has built an object. Give the pool these values: "
            "FlowerPool(..., model={'class_path': ..., 'init_args': {...}}), and fit 'pool.build_model()'. Or start this run "
            "with 'fl-lightning fit --config FILE'."
        )
    return {"model": expanded(model), "federation": {name: values_of(getattr(settings, name), name) for name in SECTIONS}}


def _typed(saved: SaveConfigCallback) -> dict[str, Any]:
    """Return the values that the command line was given."""
    values = load(saved.parser.dump(saved.config, skip_unset=False, skip_validation=True))
    federation = {name: values["federation"].get(name) for name in SECTIONS}
    federation["strategy"] = federation["strategy"] or {"class_path": "fl_lightning.FedAvg", "init_args": {}}
    federation["route"] = federation["route"] or {"class_path": "fl_lightning.ServerRoute", "init_args": {}}
    federation["transforms"] = federation["transforms"] or []
    return {"model": values["model"], "federation": federation}


def expanded(value: Any) -> Any:
    """Return values in which the classes of this package have their dotted paths instead of short names."""
    if isinstance(value, Mapping):
        found = {name: expanded(item) for name, item in value.items()}
        path = found.get("class_path")
        return found | {"class_path": f"fl_lightning.{path}"} if isinstance(path, str) and "." not in path else found
    return [expanded(item) for item in value] if isinstance(value, list | tuple) else value


def build_model(model: Mapping[str, Any] | None) -> LightningModule:
    """Return the module that sites will build from these values.

    Raises:
        ConfigurationError: if values are missing, or do not fit.
    """
    if model is None:
        raise ConfigurationError("The pool has no 'model' to build. Pass model={'class_path': ..., 'init_args': {...}}.")
    values = expanded(model)
    named = re.findall(r'"class_path": "([^"]*)"', json.dumps(values, default=str))  # the user's own; a site has its own list
    recipe = Recipe({*default_classes(), *named})
    recipe.check(values, "model")
    try:
        return recipe.build(values, LightningModule, "model")  # type: ignore[no-any-return]
    except (AttributeError, TypeError, ValueError, ImportError) as error:
        raise ConfigurationError(
            f"The pool's 'model' cannot be built ({type(error).__name__}: {error}). Write every class in it as "
            "{'class_path': ..., 'init_args': {...}}."
        ) from error


def values_of(value: Any, where: str) -> Any:
    """Return a setting as values: an object becomes its class and its constructor's arguments, which it keeps.

    Args:
        value: plain values, objects of this package's settings, and classes or partial calls of them.
        where: the name of the setting, for messages.

    Raises:
        ConfigurationError: if it contains something that has no values, such as a function.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [values_of(item, f"{where}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(name): values_of(item, f"{where}.{name}") for name, item in value.items()}
    if isinstance(value, type):
        return {"class_path": public_path(value), "init_args": {}}
    if isinstance(value, functools.partial) and isinstance(value.func, type) and not value.args:
        return {"class_path": public_path(value.func), "init_args": values_of(value.keywords, where)}
    plain = hasattr(value, "__dict__") and not isinstance(value, FunctionType | BuiltinFunctionType | MethodType)
    own, names = (vars(value), constructor_arguments(type(value))) if plain else ({}, ())
    kept = {name: own.get(name, own.get(f"_{name}", _MISSING)) for name in names}
    if not plain or (own and not kept) or any(item is _MISSING for item in kept.values()):
        raise ConfigurationError(
            f"'federation.{where}' is {str(value)[:80]!r}, which sites cannot build from values. Use a class that keeps its "
            "arguments under their own names, or functools.partial of one."
        )
    arguments = {name: values_of(item, f"{where}.{name}") for name, item in kept.items()}
    return {"class_path": public_path(type(value)), "init_args": arguments}


def found_at_start(setting: Any, values: Any) -> Any:
    """Return a setting's values with those arguments of options that were found at the start of the fit.

    Args:
        setting: the setting: an option, another object of settings, or a list of them.
        values: the same as values.
    """
    if isinstance(setting, list | tuple) and isinstance(values, list):
        return [found_at_start(one, value) for one, value in zip(setting, values, strict=True)]
    if not isinstance(values, Mapping):
        return values
    inner = dict(values.get("init_args", values))
    found = setting.sent_to_sites() if isinstance(setting, OptionSettings) else {}
    if is_dataclass(setting):
        inner = {name: found_at_start(getattr(setting, name, None), value) for name, value in inner.items()}
    inner |= found
    return {**values, "init_args": inner} if "init_args" in values else inner


@functools.cache
def _short_paths() -> dict[type, str]:
    return {resolve_name(path): path for path in sorted(default_classes())}


def public_path(kind: type) -> str:
    """Return the dotted path by which sites know a class.

    Raises:
        ConfigurationError: if it cannot be imported, such as one that the script defines.
    """
    known = _short_paths().get(kind)
    if known is None and (kind.__module__ == "__main__" or "<locals>" in kind.__qualname__):
        raise ConfigurationError(f"Sites cannot import '{kind.__qualname__}' from a script. Move it to a module of theirs.")
    return known or f"{kind.__module__}.{kind.__qualname__}"
