"""``--help``: the first page, and what it names."""

from __future__ import annotations

import inspect
import re

import pytest

from fl_lightning import ClassificationTask
from fl_lightning.cli.federation_cli import FederationCLI
from fl_lightning.cli.help_pages import SECTIONS, first_page


@pytest.fixture(scope="module")
def settings() -> set[str]:
    """Names of all settings of a fit, as its parser has them."""
    return settings_of("fit")


def parsers(*typed: str) -> dict:
    """Return the parsers that a command makes, before it parses anything."""

    class Parsers(FederationCLI):
        def parse_arguments(self, parser, args):
            raise StopIteration

    made = Parsers.__new__(Parsers)
    with pytest.raises(StopIteration):
        made.__init__(list(typed))
    return made._subcommand_parsers


def settings_of(command: str) -> set[str]:
    return {action.dest for action in parsers(command)[command]._actions}


def test_the_first_page_fits_on_a_screen_or_two(fl):
    status, text = fl("fit", "--help")
    assert status == 0
    assert text == first_page("fit")
    assert len(text.splitlines()) <= 60
    assert max(map(len, text.splitlines())) <= 128


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(FederationCLI.subcommands()))
def test_the_first_page_names_settings_that_there_are_in_columns(command):
    rows = [line for line in first_page(command).splitlines() if line.startswith("  ")]
    assert len(rows) > 20
    assert not [row for row in rows if not re.search(r"\S  +\S", row)]
    named = re.findall(r"^  --([\w.]+)", first_page(command), re.MULTILINE)
    assert len(named) >= 4
    own = inspect.signature(ClassificationTask).parameters
    known = settings_of(command)
    assert not [name for name in named if name not in known and name.removeprefix("model.") not in own]


def test_every_section_is_explained(settings):
    tops = {name.split(".")[0] for name in settings if "." in name} | {"model"}
    assert {section for section in SECTIONS if "." not in section} == tops
    assert all(any(name.startswith(section) for name in settings) for section in SECTIONS)


def test_a_section(fl):
    status, text = fl("fit", "--help", "federation")
    assert status == 0
    assert (
        "--federation.clients_per_round <int | float> = 1.0\n      the clients per round: a float in (0, 1] is a fraction"
        in text
    )
    assert "AFL, APFL, AdaFed, CosineFilter, Ditto, FedAdagrad, FedAsync, FedAvg" in text
    assert "--federation.local.max_epochs" not in text
    assert re.search(r"federation\.local +how a client trains", text)
    assert len(text.splitlines()) < 66
    assert "--federation.local.proximal_mu <float> = 0.0" in fl("fit", "--help", "federation.local")[1]
    assert "--ckpt_path" in fl("test", "--help", "--ckpt_path")[1]


def test_all_settings(fl, settings):
    status, text = fl("fit", "--help", "all")
    assert status == 0
    named = re.findall(r"^  --([\w.]+) <", text, re.MULTILINE)
    loaders = {name for name in settings if name in SECTIONS} - {"model"}  # '--trainer file.yaml', and '.help' of classes
    rest = {"help", "config", "print_config", "federation.local.partial_work"}
    assert sorted(named) == sorted(name for name in settings - loaders - rest if not name.endswith(".help"))
    assert len(text.splitlines()) < 400


def test_a_class(fl):
    status, text = fl("fit", "--help", "AdaFed")
    assert status == 0
    assert text == fl("fit", "--federation.strategy.help", "AdaFed")[1]
    assert re.findall(r"^  (\w+) <", text, re.MULTILINE) == ["metric", "power", "examples", "mode", "epsilon", "scored_by"]
    assert "power <float> = 1.0\n      the exponent of the score, > 0." in text
    assert len(text.splitlines()) < 30
    assert "``" not in text
    assert ":class:" not in text


def test_a_class_from_elsewhere(fl):
    text = fl("fit", "--help", "torch.optim.SGD")[1]
    assert text.startswith("torch.optim.sgd.SGD\n")
    assert "momentum <float> = 0" in text
    assert "params <" not in text
    assert "math::" not in text


def test_a_base_class_lists_its_kinds(fl):
    text = fl("fit", "--federation.strategy.help")[1]
    assert "Classes: AFL, APFL, AdaFed, CosineFilter" in text


def test_what_a_network_can_be(fl):
    text = fl("fit", "--help", "ClassificationTask")[1]
    network = text.partition("  network <")[2].partition("\n  num_classes")[0]
    assert "KerasCNN" in network
    assert "CrossEntropy" not in network


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("federatoin", "Did you mean 'federation'?"),
        ("AdaFeed", "Did you mean 'AdaFed'?"),
        ("nowhere.Class", "neither a setting nor a class"),
        ("federation.strategy.power", "is a setting of the class given by 'federation.strategy'"),
    ],
)
def test_an_unknown_topic_is_one_message(fl, topic, said):
    status, text = fl("fit", "--help", topic)
    assert status == 2
    assert said in text
    assert len(text.splitlines()) == 1


@pytest.mark.slow
def test_only_the_command_that_was_typed_gets_settings():
    sizes = {name: len(parser._actions) for name, parser in parsers("test", "--config", "x.yaml").items()}
    assert {name for name, size in sizes.items() if size > 50} == {"test"}
    assert all(len(parser._actions) > 50 for parser in parsers("--config", "x.yaml", "fit").values())
