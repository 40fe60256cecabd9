"""``--help``: the first page, and what it names."""

import inspect
import re

import pytest

from fl_lightning import ClassificationTask
from fl_lightning.cli.federation_cli import FederationCLI
from fl_lightning.cli.help import first_page


def parsers(*typed: str) -> dict:
    """Return the parsers that a command makes, before it parses anything."""

    class Parsers(FederationCLI):
        def parse_arguments(self, parser, args):
            raise StopIteration

    made = Parsers.__new__(Parsers)
    with pytest.raises(StopIteration):
        made.__init__(list(typed))
    return made._subcommand_parsers


def test_the_first_page_fits_on_a_screen_or_two(fl, typed):
    status, text = typed("fit", "--help")
    assert status == 0
    assert text == first_page("fit") == fl("fit", "--config", "adafed_mnist", "--help")[1]
    assert len(text.splitlines()) <= 60
    assert max(map(len, text.splitlines())) <= 128


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(FederationCLI.subcommands()))
def test_the_first_page_names_settings_that_there_are_in_columns(command):
    rows = [line for line in first_page(command).splitlines() if line.startswith("  ")]
    assert len(rows) > 10
    assert not [row for row in rows if not re.search(r"\S  +\S", row)]
    named = re.findall(r"^  --([\w.]+)", first_page(command), re.MULTILINE)
    assert len(named) >= 4
    own = inspect.signature(ClassificationTask).parameters
    known = {action.dest for action in parsers(command)[command]._actions}
    assert not [name for name in named if name not in known and name.removeprefix("model.") not in own]


def test_a_class(typed):
    status, text = typed("fit", "--help", "AdaFed")
    assert status == 0
    assert re.findall(r"^  (\w+) <", text, re.MULTILINE) == ["metric", "power", "examples", "mode", "epsilon", "scored_by"]
    assert "power <float> = 1.0\n      the exponent of the score, > 0." in text
    assert len(text.splitlines()) < 35
    assert "``" not in text
    assert ":class:" not in text
    assert "Classes: AFL, APFL, AdaFed, CosineFilter" in typed("fit", "--help", "Strategy")[1]
    assert "max_epochs <int> = 1" in typed("fit", "--help", "LocalTraining")[1]  # a section is a class
    text = typed("fit", "--help", "torch.optim.SGD")[1]  # from elsewhere
    assert text.startswith("torch.optim.SGD\n")
    assert "momentum <float> = 0" in text
    assert "math::" not in text


@pytest.mark.slow
def test_only_the_command_that_was_typed_gets_settings():
    sizes = {name: len(parser._actions) for name, parser in parsers("test", "--config", "x.yaml").items()}
    assert {name for name, size in sizes.items() if size > 50} == {"test"}
    assert all(len(parser._actions) > 50 for parser in parsers("--config", "x.yaml", "fit").values())
