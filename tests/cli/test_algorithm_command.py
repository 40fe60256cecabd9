"""The list of algorithms: nothing is missing from it, and nothing is in it that is not there."""

import inspect
import re

from command_line import ROOT

from fl_lightning import FilteringStrategy, PeriodRoute, Route, ServerRoute, Strategy, routes, strategies
from fl_lightning.cli.commands.algorithms import listing, main, section
from fl_lightning.config.files import find
from fl_lightning.strategies import ALGORITHMS

ROWS = [one for group in ALGORITHMS.values() for one in group]
PLACES = {one: section(group, one) for group, algorithms in ALGORITHMS.items() for one in algorithms}
LINKED = {place for place in PLACES.values() if not place.startswith("..")}
PAGES = {path.name: path.read_text() for path in (ROOT / "docs" / "algorithms").glob("*.md")}


def sections(page: str) -> dict[str, str]:
    """Return the sections of a page by the anchor of their headings."""
    parts = re.split(r"^## (.*)\n", PAGES[page], flags=re.MULTILINE)
    return {heading.lower().replace(" ", "-"): text for heading, text in zip(parts[1::2], parts[2::2], strict=True)}


def test_every_line_has_its_config_and_a_section_that_runs_it():
    for one, place in PLACES.items():
        page, _, anchor = place.partition("#")
        assert find(one.config).is_file()
        text = (ROOT / "docs" / page[3:]).read_text() if page.startswith("..") else sections(page)[anchor]
        assert f"fl-lightning fit --config {one.config}" in text


def test_every_section_says_when_to_choose_the_algorithm_and_stands_in_the_table():
    assert {place.partition("#")[0] for place in LINKED} == set(PAGES) - {"README.md"}
    for page in set(PAGES) - {"README.md"}:
        for anchor, text in sections(page).items():
            place = f"{page}#{anchor}"
            assert f"]({place})" in PAGES["README.md"]
            described = "../table_two.md#k-means" in text
            assert described or (place in LINKED and "Choose it" in text), place


def test_every_strategy_and_route_is_listed_and_shows_its_settings():
    """A class is listed if a listed configuration uses it."""
    used = "\n".join(find(one.config).read_text() for one in ROWS)
    classes = [
        kind
        for module in (strategies, routes)
        for name in module.__all__
        if inspect.isclass(kind := getattr(module, name)) and issubclass(kind, Strategy | Route)
    ]
    bases = {FilteringStrategy, PeriodRoute, ServerRoute, *(k for k in classes if inspect.isabstract(k)), Strategy}
    assert len(classes) > 30
    assert [kind.__name__ for kind in classes if kind not in bases and kind.__name__ not in used] == []
    shown = set(re.findall(r"^```\{settings\} (\w+)\n```$", "\n".join(PAGES.values()), re.MULTILINE))
    assert {kind.__name__ for kind in classes if kind not in bases} - shown == {"FederatedKMeans"}


def test_the_command(capsys):
    main([])
    said = capsys.readouterr().out
    assert len([line for line in said.splitlines() if line.startswith("  ")]) == len(ROWS)
    rows = [" ".join(line.split()) for line in said.splitlines()]
    assert "FedBN BatchNorm stays at each client fedbn_mnist docs/algorithms/personal.md#fedbn" in rows
    assert len({line.index(one.config) for one in ROWS for line in said.splitlines() if f" {one.config} " in line}) == 1
    main(["median"])
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines() if line.startswith("  ")] == ["FedMedian", "Geometric"]
    assert listing("nothing of the kind") == ""
