"""Each setting of each public class takes a value and uses it, or refuses it in one message; it never ends in any other way.

Recipes are in ``tests/support/signatures.py``. Tier 1 draws a few settings and values; the slow test takes all of them.
"""

import inspect
import math
import re
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from signatures import NOT_SETTINGS, RECIPES, Recipe

import fl_lightning
from fl_lightning import ClientError, ConfigurationError, DataError
from fl_lightning.utilities.argument_types import fits

NUMBERS = [-1, 0, 1, 10**30, 0.5, math.nan, math.inf, -math.inf, 1e30, True, np.float64(0.25), np.int64(1), torch.tensor(1)]
VALUES = [None, *NUMBERS, "", "word", [], {}, ["word", None], {"word": None}]
ALIASES = {"monitor": "metric", "base": "configuration", "floor": "mape_floor"}
REMEDY = r"must be|It has|\b(Add|Change|Choose|Correct|Give|Install|List|Lower|Name|Put|Raise|Remove|Set|Try|Use|Write)\b"


def settings(kind: Any) -> list[str]:
    """The names of a class's settings, with those that a datamodule hands to its base as the command line finds them."""
    found = inspect.signature(kind).parameters.values()
    if inspect.isclass(kind) and issubclass(kind, LightningDataModule):
        return ArgumentParser().add_class_arguments(kind, fail_untyped=False)
    return [one.name for one in found if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]


SETTINGS = [(name, setting) for name, recipe in RECIPES.items() for setting in settings(recipe.kind) if setting != "params"]


def shown(value: Any, text: str) -> bool:
    """Whether a message shows a value, or says what kind of thing it is; of nothing and empty ones there is none to show."""
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    nothing = value is None or value == {} or value == []
    return nothing or any(word in text for word in (repr(value), str(value), type(value).__name__, *map(repr, inner)))


def complaint(recipe: Recipe, setting: str, value: Any) -> str:
    """What is wrong with how a class takes a value; empty if nothing is."""
    plain = value.item() if isinstance(value, np.generic) else value
    huge = isinstance(value, float) and abs(value) >= 1e30
    valid, made = recipe.valid(), None
    try:
        made = recipe.kind(**{**valid, setting: value})
        run = recipe.use(made) if recipe.use else None
    except (ConfigurationError, DataError, MisconfigurationException) as error:  # the last as Lightning's engine words it
        text = str(error)
        told = [bool(re.search(rf"\b({setting}|{ALIASES.get(setting, setting)})\b", text)), shown(plain, text)]
        enough = all(told) if made is None and not isinstance(error, DataError) else any(told)
        return "" if enough and re.search(REMEDY, text) else f"the message lacks the name, the value or a remedy: {text}"
    except ClientError as error:  # training with this value diverges
        return "" if huge else f"{error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    hints = [get_type_hints(base.__init__, include_extras=True) for base in inspect.getmro(recipe.kind)[:-1]]
    hint = next((own[setting] for own in hints if setting in own), Any)
    if not fits(plain, hint, strict=True) and setting not in getattr(recipe.kind, "may_be_infinite", ()):
        return f"it is taken, though it is no {hint}"
    module = getattr(run, "lightning_module", None)
    finite = module is None or all(bool(tensor.isfinite().all()) for tensor in module.state_dict().values())
    return "" if finite or huge else "the trained weights are not finite"


@given(case=st.sampled_from(SETTINGS), value=st.sampled_from(VALUES))
def test_a_setting_takes_a_value_or_refuses_it(case: tuple[str, str], value: Any) -> None:
    assert complaint(RECIPES[case[0]], case[1], value) == ""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "setting"), SETTINGS)
def test_each_setting_takes_each_value_or_refuses_it(name: str, setting: str) -> None:
    found = {repr(value): complaint(RECIPES[name], setting, value) for value in VALUES}
    assert {value: text for value, text in found.items() if text} == {}


def reached(kind: Any) -> Iterator[type]:
    """The package's classes that a type names."""
    if inspect.isclass(kind) and kind.__module__.startswith("fl_lightning") and not getattr(kind, "_is_protocol", False):
        yield kind
    for inner in get_args(kind):
        yield from reached(inner)


def test_each_public_class_with_settings_has_a_recipe() -> None:
    """Of those that the package names, and those that their signatures name."""
    named = [getattr(fl_lightning, name) for name in {*fl_lightning.__all__} - NOT_SETTINGS]
    classes = [one for one in named if inspect.isclass(one) and not issubclass(one, Exception)]
    reach = [one for kind in classes for hint in get_type_hints(kind.__init__).values() for one in reached(hint)]
    known = {one.__name__ for one in (*classes, *reach) if not inspect.isabstract(one) and settings(one)}
    missing = sorted(known - RECIPES.keys() - NOT_SETTINGS)
    assert not missing, f"Add a line for {missing} to tests/support/signatures.py."


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_the_recipes_are_valid(name: str) -> None:
    recipe = RECIPES[name]
    made = recipe.kind(**recipe.valid())
    if recipe.use:
        recipe.use(made)
