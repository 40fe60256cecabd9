"""What the tables of refusals are made of: a call that must fail, and the words of its message."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from command_line import ADAFED, SMALL
from federations import Plain, federate

from fl_lightning import ConfigurationError, DataError


@dataclass(frozen=True)
class Refusal:
    """A mistake and what its user reads.

    Args:
        call: raises the error.
        words: of the message, one space between them; ``...`` stands for any text, also before the first and after the last.
        error: its class.
    """

    call: Callable[[], Any]
    words: str
    error: type[BaseException] = ConfigurationError


def told(call: Callable[[], Any], words: str) -> Refusal:
    """Return a row on data that cannot be used."""
    return Refusal(call, words, DataError)


def fits(words: str, **settings: Any) -> Refusal:
    """Return a row on a fit with these settings."""
    return Refusal(fitting(**settings), words)


def later(act: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    """Let a function return the call of it with its arguments, for a row."""
    return lambda *args, **settings: partial(act, *args, **settings)


def made(name: str, base: type, **parts: Any) -> Any:
    """Return a subclass with these methods and attributes."""
    return type(name, (base,), parts)


def fitting(**settings: Any) -> Callable[[], Any]:
    """Return a call that fits a small federation for a round, with these settings of ``federate``; ``module`` is a class."""
    module, rounds = settings.pop("module", Plain), settings.pop("rounds", 1)
    return lambda: federate(module(), rounds, **settings)


def typing(*args: str) -> list[str]:
    """Return a small AdaFed run of the command line with these arguments, for a table of commands."""
    return ["fit", "--config", ADAFED, *SMALL, "--trainer.logger=false", "--trainer.max_epochs=1", *args]


def parts(words: str) -> list[str]:
    """Return the texts that a message must hold, in this order."""
    return [part for part in (" ".join(part.split()) for part in words.split("...")) if part]


def holds(message: str, words: str) -> bool:
    """Return whether a message has the words, in their order."""
    rest = " ".join(message.split())
    for part in parts(words):
        _, found, rest = rest.partition(part)
        if not found:
            return False
    return True
