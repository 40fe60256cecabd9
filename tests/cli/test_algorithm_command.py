"""The list of algorithms: nothing is missing from it, and nothing is in it that is not there."""

from __future__ import annotations

import inspect
import re

import pytest
from command_line import ROOT

from fl_lightning import FilteringStrategy, JointStrategy, PeriodRoute, Route, ServerRoute, Strategy, routes, strategies
from fl_lightning.cli.commands.algorithms import ALGORITHMS, listing, main
from fl_lightning.config.files import find

ROWS = [one for group in ALGORITHMS.values() for one in group]


@pytest.mark.parametrize("one", ROWS, ids=lambda one: one.name)
def test_every_line_has_its_config_and_a_page_that_names_it(one):
    assert find(one.config).is_file()
    text = (ROOT / "docs" / "algorithms" / f"{one.page}.md").read_text()
    assert one.config in text


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
    assert pages == {one.page for one in ROWS if not one.page.startswith("..")}


TABLES = dict(text.split("\n", 1) for text in (ROOT / "docs" / "algorithms" / "README.md").read_text().split("\n## ")[1:])


def row_of(group, page):
    """Return the cells of a page's row in the table of its group."""
    rows = [line for line in TABLES[group].splitlines() if f"]({page}.md" in line]
    return [cell.strip() for cell in rows[0].strip("|").split("|")]


def test_the_tables_have_a_row_for_each_algorithm_in_its_group():
    for group, algorithms in ALGORITHMS.items():
        for one in algorithms:
            name, line, helps, cost, _ = row_of(group, one.page)
            assert name.startswith("["), one.name
            assert all((line, helps, cost)), one.name


def test_the_tables_name_what_a_strategy_does_not_work_with_and_what_the_server_holds():
    seen = set()
    for group, algorithms in ALGORITHMS.items():
        for one in algorithms:
            used = re.findall(r"strategy: (?:{class_path: )?(\w+)", find(one.config).read_text())
            kind = getattr(strategies, used[0]) if used else None
            if kind is None or kind in seen:
                continue
            seen.add(kind)
            _, _, _, cost, against = row_of(group, one.page)
            joint = issubclass(kind, JointStrategy)
            assert ("holds all models of the round" in cost) == joint, one.name
            assert "secure aggregation" in against or not joint, one.name
            assert ("central" in kind.private_with) == (not re.search("central noise|privacy", against)), one.name
            assert not kind.needs_own_training or re.search("pass models|other than `ServerRoute`", against), one.name
    assert len(seen) > 20


def test_the_bytes_in_the_tables_are_those_of_the_runs():
    """All algorithms trained for 20 local epochs on the same clients; RingFed and Fed-Star in half the rounds, with P = 2."""
    report = (ROOT / "docs" / "studies" / "algorithms_mnist" / "report.md").read_text()
    costs = report.split("**Cost.**")[1].split("\n## ")[0]
    total = {
        row[0].strip("| "): float(row[1]) for row in re.findall(r"^\| (.+?) \|.* ([\d.]+) ± [\d.]+ \| [^|]+\|$", costs, re.M)
    }
    exceptions = {"Fed-Star": (1 + 2 * 5) / 2, "RingFed": 2 / 2}  # of six clients
    checked = 0
    for group, algorithms in ALGORITHMS.items():
        for one in algorithms:
            said = re.match(r"(\d)x", row_of(group, one.page)[3])
            factor = exceptions.get(one.name) or (float(said[1]) if said else None)
            if one.name in total and factor is not None:
                assert total[one.name] / total["FedAvg"] == pytest.approx(factor, abs=0.01), one.name
                checked += 1
    assert checked > 18


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
