"""The list of algorithms: nothing is missing from it, and nothing is in it that is not there."""

from __future__ import annotations

import inspect

import pytest
from command_line import ROOT

from fl_lightning import FilteringStrategy, PeriodRoute, Route, ServerRoute, Strategy, routes, strategies
from fl_lightning.cli.commands.algorithms import listing, main
from fl_lightning.config.files import find
from fl_lightning.strategies import ALGORITHMS

ROWS = [one for group in ALGORITHMS.values() for one in group]


def test_every_line_has_its_config_and_a_page_that_names_it():
    for one in ROWS:
        assert find(one.config).is_file()
        assert one.config in (ROOT / "docs" / "algorithms" / f"{one.page or one.file}.md").read_text()


def test_every_strategy_route_and_page_is_listed():
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
    pages = {path.stem for path in (ROOT / "docs" / "algorithms").glob("*.md")} - {"README"}
    assert pages == {one.page or one.file for one in ROWS if not one.page.startswith("..")}


def test_the_command(capsys):
    main([])
    said = capsys.readouterr().out
    assert len([line for line in said.splitlines() if line.startswith("  ")]) == len(ROWS)
    rows = [" ".join(line.split()) for line in said.splitlines()]
    assert "FedBN BatchNorm stays at each client fedbn_mnist docs/algorithms/fedbn.md" in rows
    assert len({line.index(one.config) for one in ROWS for line in said.splitlines() if f" {one.config} " in line}) == 1
    main(["median"])
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines() if line.startswith("  ")] == ["FedMedian", "Geometric"]
    assert listing("nothing of the kind") == ""
    for arguments, status, message in (
        (["fedbm"], 1, "No algorithm matches 'fedbm'. Did you mean FedBN"),
        (["a", "b"], 2, "usage"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == status
        captured = capsys.readouterr()
        assert message in captured.out + captured.err
