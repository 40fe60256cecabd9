"""One readable message from what the parser says."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from difflib import get_close_matches

from jsonargparse import Namespace
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

import fl_lightning
from fl_lightning.attacks import Backdoor, LabelAttack, ModelAttack
from fl_lightning.clients.example_privacy import ExamplePrivacy
from fl_lightning.clients.secure_aggregation import SecureAggregation
from fl_lightning.errors import ConfigurationError
from fl_lightning.partitioners.base import Partitioner
from fl_lightning.routes.base import Route
from fl_lightning.strategies.base import Strategy
from fl_lightning.transforms.base import Transform

_BASES = {
    "strategy": Strategy,
    "route": Route,
    "partitioner": Partitioner,
    "datamodule": LightningDataModule,
    "model": LightningModule,
    "transforms": Transform,
    "attackers.model": ModelAttack,
    "attackers.labels": LabelAttack,
}
_SETTINGS = {
    "federation.secure_aggregation": SecureAggregation,
    "federation.local.privacy": ExamplePrivacy,
    "federation.attackers.backdoor": Backdoor,
}
_SECTIONS = (
    *("trainer", "federation", "partition_report", "client_table", "failure_log", "feature_cache"),
    *("best_checkpoint", "last_checkpoint"),
    *(f"federation.{part}" for part in ("local", "attackers", "faults", "availability")),
    *("federation.client_evaluation", "federation.server_evaluation"),
)
_NOISE = re.compile(
    r"^\s*(- )?(Does not validate against any of the Union subtypes|Subtypes: .*|Errors:|Given value type: .*|Given value: .*|"
    r"Expected a <class 'NoneType'>.*|Expected a path but .*)$"
)


def refuse_wrong_sections(config: Namespace) -> None:
    """Refuse what the parser lets pass: a section that holds no settings, and whole numbers beyond 64 bits.

    Raises:
        ConfigurationError: naming the setting.
    """
    for section in _SECTIONS:
        held = config.get(section)
        if not isinstance(held, Namespace):
            raise ConfigurationError(
                f"'{section}' must hold settings, but is {held!r}. Leave it out for its defaults, or set what is in it one by "
                "one."
            )
    for name, value in config.items():
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ConfigurationError(f"'{name}' is {value}: whole numbers go up to {2**63 - 1}. Set it to a smaller one.")


def explain(message: str, options: Sequence[str] = ()) -> str:
    """What was wrong, what is allowed, and how to see more.

    Args:
        message: the parser's own.
        options: every option there is, for a guess at what was meant.
    """
    given = re.search(r"^\s*Given value: (.*)$", message, re.MULTILINE)
    lines = [line.strip() for line in message.splitlines() if line.strip() and not _NOISE.match(line)]
    text = " ".join(line.removeprefix("- ") for line in lines)
    text = re.sub(r"<class '(?:[\w.]*\.)?(\w+)'>", r"\1", text)
    if given and "NestedArg" not in given[1] and given[1] not in text:
        text += f". Got: {given[1][:80]}"
    return text.rstrip(".") + "." + _remedy(message, options)


def _remedy(message: str, options: Sequence[str]) -> str:
    key = re.search(r'Parser key "([\w.]+)"', message)
    base = _BASES.get(key[1].removeprefix("federation."), _BASES.get(key[1].split(".")[-1])) if key else None
    if key and key[1] in _SETTINGS and "dot import path" in message:
        names = inspect.signature(_SETTINGS[key[1]]).parameters
        return f" It holds settings, or null for none: {{{', '.join(f'{name}: ...' for name in names)}}}."
    if base and "dot import path" in message:
        known = [name for name in fl_lightning.__all__ if _is_concrete(getattr(fl_lightning, name), base)]
        return f" Known: {', '.join(known)}; any other by its dotted path, package.module.Class."
    unknown = re.search(r"(?:unrecognized arguments: |Option '|[Kk]ey ')(?:--)?([\w.]+)", message)
    if unknown:
        name = unknown[1]
        flag = name.removeprefix("federation.local.")
        if flag != name and flag in inspect.signature(Trainer.__init__).parameters:
            return (
                f" '{flag}' is a flag of the federation's Trainer that a client's own cannot have: set 'trainer.{flag}'. What "
                "a client takes: fl-lightning fit --help."
            )
        close = get_close_matches(f"--{name}", options, n=1, cutoff=0.7)
        if close:
            return f" Did you mean {close[0]}?"
    if key and "No module named" in message:
        return " A module of your own must be in this folder or on PYTHONPATH: PYTHONPATH=<its folder> fl-lightning fit ..."
    given = re.search(r"class_path '([\w.]+)'", message)
    example = f"{key[1]}.help {given[1]}" if key and given else "federation.strategy.help AdaFed"
    return f" All settings: fl-lightning fit --help; those of a class: fl-lightning fit --{example}."


def _is_concrete(candidate: object, base: type) -> bool:
    return (
        inspect.isclass(candidate)
        and issubclass(candidate, base)
        and candidate is not base
        and not inspect.isabstract(candidate)
    )
