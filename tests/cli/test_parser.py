"""The parser checks each setting once, with jsonargparse's own messages, and keeps nothing of a command."""

from __future__ import annotations

import pytest
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from fl_lightning.cli.parser import FederationParser

seen: list[int] = []


def counted(value: str) -> int:
    seen.append(int(value))
    return int(value)


@pytest.fixture
def parser():
    inner = FederationParser()
    inner.add_argument("--size", type=int, default=3)
    inner.add_argument("--nested.depth", type=int, required=True)
    inner.add_argument("--counted", type=counted, default=1)
    outer = FederationParser(exit_on_error=False)
    outer.add_argument("--level", type=int, default=0)
    outer.add_subcommands().add_subcommand("go", inner)
    return outer


GOOD = {"subcommand": "go", "level": 1, "go": {"size": 2, "nested.depth": 1, "counted": 4}}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"go": {"size": 2, "nested.depth": "x"}},
        {"go": {"size": "x", "nested.depth": 1}},
        {"go": {"size": 2}},
        {"go": {"nested.depth": 1, "speed": 1}},
        {"go": {"nested.depth": 1, "nested.width": 1}},
        {"level": "x"},
        {"other": 1},
        {"subcommand": None},
        {"go": None},
    ],
    ids=str,
)
def test_wrong_settings_have_the_messages_of_jsonargparse(parser, change):
    """Oracle: the parser of Lightning, which checks each setting of a subcommand twice."""
    told = []
    for check in (LightningArgumentParser.validate, FederationParser.validate):
        given = Namespace()
        for name, value in (GOOD | change).items():
            given[name] = value if not isinstance(value, dict) else Namespace()
            for inner, setting in value.items() if isinstance(value, dict) else ():
                given[name][inner] = setting
        try:
            check(parser, given)
            told.append("")
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
    assert told[0] == told[1]
    assert bool(told[0]) is bool(change)


def test_each_setting_of_a_command_is_checked_once(parser):
    given = parser.parse_object(GOOD)
    seen.clear()
    parser.validate(given)
    assert seen == [4]
