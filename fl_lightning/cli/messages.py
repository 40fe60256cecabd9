"""Readable messages for what the parser rejects."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence

from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

import fl_lightning
from fl_lightning.attacks import Backdoor, LabelAttack, ModelAttack
from fl_lightning.callbacks.orchestrator import FederatedOrchestrator
from fl_lightning.cli.names import nearest_class, nearest_setting, where, wrong_name
from fl_lightning.compat.jsonargparse import in_words
from fl_lightning.config.wrong_value import wrong_value
from fl_lightning.core.option import Option
from fl_lightning.errors import ConfigurationError, did_you_mean
from fl_lightning.options.example_privacy import ExamplePrivacy
from fl_lightning.options.secure_aggregation import SecureAggregation
from fl_lightning.partitioners.base import Partitioner
from fl_lightning.routes.base import Route
from fl_lightning.settings.server import RemoteClients
from fl_lightning.strategies.base import Strategy
from fl_lightning.transforms.base import Transform

_BASES = {
    "strategy": Strategy,
    "route": Route,
    "partitioner": Partitioner,
    "datamodule": LightningDataModule,
    "model": LightningModule,
    "transforms": Transform,
    "options": Option,
    "attackers.model": ModelAttack,
    "attackers.labels": LabelAttack,
    "pool": RemoteClients,
}
_SETTINGS = {
    "federation.secure_aggregation": SecureAggregation,
    "federation.local.privacy": ExamplePrivacy,
    "federation.attackers.backdoor": Backdoor,
}
_SECTIONS = (
    *("trainer", "federation", "federation_report", "feature_cache", "best_checkpoint", "last_checkpoint"),
    *(f"federation.{part}" for part in ("local", "attackers", "faults", "availability", "storage", "checkpoints")),
    *("federation.client_evaluation", "federation.server_evaluation"),
)
_OWN_CALLBACKS = {
    "FederatedOrchestrator": "federation",
    "FederationReport": "federation_report",
    "FeatureCache": "feature_cache",
    "BestCheckpoint": "best_checkpoint",
    "LastCheckpoint": "last_checkpoint",
}
"""Callbacks of every run, and the sections with their settings."""
_NOISE = re.compile(
    r"^\s*(- )?(Does not validate against any of the Union subtypes|Subtypes: .*|Errors:|Given value type: .*|Given value: .*|"
    r"Expected a <class 'NoneType'>.*|Expected a path but .*)$"
)
_TYPES = (["lightning.LightningModule"], ["lightning.LightningDataModule"], ["torch.nn.Module"])
"""Types of settings, which the parser takes for the class if a file names none."""

_NO_SECTION = "'{}' must contain settings, but is {}. Leave it out to use its defaults, or set its settings one by one."


def refuse_wrong_sections(config: Namespace) -> None:
    """Reject what the parser accepts by mistake: sections without settings, and whole numbers beyond 64 bits.

    Raises:
        ConfigurationError: naming the setting.
    """
    for section in _SECTIONS:
        held = config.get(section)
        if not isinstance(held, Namespace):
            raise ConfigurationError(_NO_SECTION.format(section, repr(held)))
    for name, value in config.items():
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ConfigurationError(f"'{name}' is {value}, but whole numbers go up to {2**63 - 1}. Set it to a smaller one.")


def refuse_second_callbacks(config: Namespace) -> None:
    """Reject callbacks in ``trainer.callbacks`` that a section of the configuration sets up.

    Raises:
        ConfigurationError: naming the section.
    """
    given = config.trainer.callbacks or []
    for callback in given if isinstance(given, list) else [given]:
        package, _, name = callback.class_path.partition(".")
        section = _OWN_CALLBACKS.get(name.rpartition(".")[2]) if package == "fl_lightning" else None
        monitor = (callback.get("init_args") or {}).get("monitor")
        if section is not None and monitor in (None, config[section].get("monitor")):
            raise ConfigurationError(
                f"'trainer.callbacks' has a {name.rpartition('.')[2]}, but every run has one by its section '{section}'. Set "
                f"'{section}' instead, and remove it from 'trainer.callbacks'."
            )


def explain(message: str, options: Sequence[str] = (), files: Sequence[str] = ()) -> str:
    """Return a message that says what was wrong, what is allowed, and how to see more.

    Args:
        message: the parser's own message.
        options: all existing options, to guess which one was meant.
        files: the command's configurations, one of which may contain the mistake.
    """
    before, lacking, needed = message.partition("the following arguments are required: ")
    keys, classes = re.findall(r'Parser key "([\w.]+)"', before), re.findall(r"class_path '(?:[\w.]+\.)?(\w+)'", before)
    if lacking and keys and classes:
        return where(message, files) + _lacking(".".join(keys), classes[-1], needed.splitlines()[0])
    section = re.search(r"""Parser key "([\w.]+)": Unable to load config ['"]([^'"]*)['"]""", message)
    if section and section[1] in _SECTIONS:
        return where(message, files) + _NO_SECTION.format(section[1], section[2])
    if keys and re.findall(r"class_path '([\w.]+)'", message)[-1:] in _TYPES:
        fix = f"Write '{keys[-1]}: {{class_path: ..., init_args: ...}}'."
        return f"{where(message, files)}'{keys[-1]}' has settings, but no class. {fix}"
    wrong, name = wrong_value(message), wrong_name(message)
    if wrong is not None and not (name and _on_class(message, name, keys[-1])):
        return f"{where(message, files)}{wrong} {_help_on(wrong.owner)}"
    given = re.search(r"^\s*Given value: (.*)$", message, re.MULTILINE)
    lines = [line.strip() for line in message.splitlines() if line.strip() and not _NOISE.match(line)]
    text = " ".join(line.removeprefix("- ") for line in lines)
    text = in_words(text)
    if given and "NestedArg" not in given[1] and not re.search(rf"(?<!\w){re.escape(given[1])}(?!\w)", text):
        text += f". Got: {given[1] if len(given[1]) <= 80 else given[1][:75].rstrip() + '[...]'}"
    return where(message, files) + text.rstrip(".") + "." + _remedy(message, options)


def _help_on(class_path: str | None) -> str:
    if class_path is None:
        return "All settings: fl-lightning fit --help."
    name = class_path.removeprefix("fl_lightning.")
    return f"All settings of {name.rpartition('.')[2]}: fl-lightning fit --help {name}."


def _lacking(key: str, name: str, needed: str) -> str:
    """Return which settings a class needs, and how to give them."""
    flags = " ".join(f"--{key}.{setting} VALUE" for setting in needed.split(", "))
    return (
        f"'{key}' is {name}, which needs a value for {needed}. Add {flags}, or set it in a configuration below 'init_args'. "
        f"All settings: fl-lightning fit --{key}.help {name}."
    )


def _remedy(message: str, options: Sequence[str]) -> str:
    keys = re.findall(r'Parser key "([\w.]+)"', message)
    classes = re.findall(r"class_path '([\w.]+)'", message)
    if keys and keys[-1] in _SETTINGS and "dot import path" in message:
        names = inspect.signature(_SETTINGS[keys[-1]]).parameters
        return f" It takes settings, or null for none: {{{', '.join(f'{name}: ...' for name in names)}}}."
    base = keys and " is abstract" in message and _base_of(keys[-1])
    if base and (undefined := _undefined(message)):
        return undefined
    if base:
        return f" '{keys[-1]}' has settings, but no class. Set it first, for example --{keys[-1]} {_classes(base)[0]}."
    choice = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
    if choice:
        return did_you_mean(choice[1], re.findall(r"[\w-]+", choice[2]))
    if re.search(r"are required: (.*[ .])?(model|data\.datamodule)\b", message):
        return " Use a configuration that sets them: fl-lightning fit --config adafed_mnist. List all: fl-lightning configs."
    if 'expected "subcommand"' in message:
        return " Add it: fl-lightning fit ..."
    wrong = wrong_name(message)
    unknown = re.search(r"(?:unrecognized arguments: |[Oo]ption '|[Kk]ey ')(?:--)?([\w.]+)", message)
    said = _on_class(message, wrong, keys[-1]) if keys and wrong else ""
    said = said or (_on_option(unknown[1], options) if unknown and not classes else "")
    if said:
        return said
    near = nearest_setting(unknown[1], classes[-1]) if unknown and classes else ""
    example = f"{keys[0]}.help {classes[0]}" if keys and classes else "federation.strategy.help AdaFed" if unknown else ""
    return f"{near} All settings: fl-lightning fit --help{example and f'; those of a class: fl-lightning fit --{example}'}."


def _undefined(message: str) -> str:
    """Say which methods a given class lacks; empty if the message names none."""
    given = re.search(r"class_path['\"]?\s*[:=]\s*['\"]?([\w.]+)|Given value: ([\w.]+)\s*$", message, re.MULTILINE)
    module, _, name = (given[1] or given[2] if given else "").rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    methods = sorted(getattr(found, "__abstractmethods__", ()))
    if not methods:
        return ""
    return (
        f" {name} does not define {' and '.join(map(repr, methods))}. Add {'it' if len(methods) == 1 else 'them'} to the class."
    )


def _on_class(message: str, name: str, key: str) -> str:
    """Suggest what to write in place of a class that does not exist."""
    instead: str = vars(fl_lightning)["instead_of"](name.removeprefix("fl_lightning."))
    if instead:
        return instead
    base = _base_of(key)
    known = _classes(base) if base else []
    near = did_you_mean(name, known) or nearest_class(name, key.split(".")[-1])
    if known and "dot import path" in message:
        return f"{near} Known: {', '.join(known)}; use any other by its dotted path, package.module.Class."
    if "No module named" in message:
        advice = "A module of your own must be in this folder or on PYTHONPATH: PYTHONPATH=<its folder> fl-lightning fit ..."
        return f"{near} {advice}"
    return near


def _base_of(key: str) -> type | None:
    return _BASES.get(key.removeprefix("federation."), _BASES.get(key.split(".")[-1]))


def _classes(base: type) -> list[str]:
    """Return the names of this package's classes of a kind."""
    return [own for own in fl_lightning.__all__ if _is_concrete(getattr(fl_lightning, own), base)]


def _on_option(name: str, options: Sequence[str]) -> str:
    """Suggest what to write in place of a setting that does not exist."""
    now = FederatedOrchestrator.renamed.get(name.removeprefix("federation.").partition(".")[0])
    if now and name.startswith("federation."):
        return f" It is now {now}."
    instead: str = vars(fl_lightning)["instead_of"](name.partition(".")[0])
    if instead:
        return instead
    flag = name.removeprefix("federation.local.")
    if flag != name and flag in inspect.signature(Trainer.__init__).parameters:
        return (
            f" '{flag}' is a setting of the federation's Trainer, not of a client's: set 'trainer.{flag}'. For the settings of "
            "a client, see fl-lightning fit --help."
        )
    plain = [option for option in options if not option.endswith((".help", "+")) and option != "--data"]
    near = did_you_mean(f"--{name}", plain, cutoff=0.7)
    if not near and name.startswith("data."):
        return " Write 'data: {datamodule: {class_path: ..., init_args: ...}, partitioner: ...}'."
    return near


def _is_concrete(candidate: object, base: type) -> bool:
    return (
        inspect.isclass(candidate)
        and issubclass(candidate, base)
        and candidate is not base
        and not inspect.isabstract(candidate)
    )
