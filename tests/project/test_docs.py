"""What the documents say exists, and what exists is documented."""

import doctest
import re
import sys
from importlib import import_module

import numpy as np
import pytest
import torch
from against_hand import assert_follows, clients_of
from by_hand import averaged, build, flat
from command_line import ROOT, SMALL
from federations import Plain, federate

from fl_lightning.config.files import find, names


def test_every_config_has_its_page():
    """By its path, or by its name in a command."""
    text = "\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    found = set(re.findall(r"configs/([\w/]+)\.yaml", text)) | set(re.findall(r"--config\s+([\w/]+)", text))
    assert len(names()) > 40
    assert not set(names()) - found


DOCUMENTS = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))


def test_every_configuration_that_is_named_exists(monkeypatch):
    monkeypatch.chdir(ROOT)
    for document in DOCUMENTS:
        shown = re.findall(r":caption: (\S+)", document.read_text())
        for name in re.findall(r"--(?:config|base)(?:\s+|=)(\w[\w/.]*)", document.read_text()):
            if not name.startswith(("runs/", "NAME", "config.yaml", *shown)):  # files that a run, a project or the page has
                assert find(name.rstrip("."), group="studies").is_file(), (document, name)


def test_links_lead_somewhere():
    """To files that exist, and in pages to headings that exist."""
    links = [(page, link) for page in DOCUMENTS for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text())]
    assert not [(page, link) for page, link in links if not anchored(page, *link.split("#"))]


def anchored(page, path, anchor=""):
    target = page.parent / path if path else page
    if not (target.exists() and anchor):
        return target.exists()
    headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
    return anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_page_on_flower_names_each_module_that_uses_it():
    page = (ROOT / "docs/flower_names.md").read_text()
    modules = [path.stem for path in (ROOT / "fl_lightning").rglob("*.py") if "    from flwr" in path.read_text()]
    assert len(modules) > 7
    assert [module for module in modules if f"`{module}`" not in page] == []


@pytest.mark.parametrize("page", ["trust.md", "masks.md"])
def test_the_tests_that_a_page_names_exist(page):
    file, named = "", 0
    for name, ending in re.findall(r"`(test_\w+)(\.py)?`", (ROOT / "docs" / page).read_text()):
        file = name + ending if ending else file  # the tests of a file follow it
        if not ending:
            named += 1
            assert f"def {name}(" in next((ROOT / "tests").rglob(file)).read_text(), name
    assert named > 5


def test_the_front_picture_shows_the_runs_of_the_report(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    front = import_module("draw_front")
    assert front.picture() == (ROOT / "docs" / "diagrams" / "adafed_under_attack.svg").read_text()
    tables = (ROOT / "docs" / "studies" / "adafed_simulation_3" / "report.md").read_text().split("## attackers: ")[1:]
    for (attackers, algorithm), curve in front.curves().items():
        table = next(text for text in tables if text.startswith(attackers))
        row = re.findall(r"[\d.]+", re.search(rf"\| {algorithm} \|.*", table.split(" over rounds.**")[1])[0])
        assert [float(number) for number in row[:8]] == pytest.approx([x for i in (4, 9, 14, 19) for x in curve[i]], abs=0.006)
    for page in ("README.md", "docs/index.md"):
        assert "4 seeds" in (ROOT / page).read_text()
        assert "over 4 seeds" in tables[0]


def test_the_example_with_sums_bounds_every_update(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    norm_bounded = import_module("norm_bounded")

    def step(net, world, t):
        clients = clients_of(net, world)
        w, mean = flat(net)[0], averaged(net, clients, world.sizes)
        changes = [flat(client)[0] - w for client in clients]
        scales = [min(1.0, 0.4 / np.linalg.norm(change)) for change in changes]
        assert min(scales) < 1
        moved = sum(n * s * c for n, s, c in zip(world.sizes, scales, changes, strict=True)) / world.sizes.sum()
        return build(net, w + moved, *flat(mean)[1:])

    assert_follows(torch.float64, step, strategy=norm_bounded.NormBounded(0.4))


def test_the_example_with_sums_works_from_its_yaml(fl, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    yaml = str(ROOT / "docs" / "examples" / "norm_bounded.yaml")
    status, text = fl("fit", "--config", yaml, *SMALL, "--trainer.logger=false", "--trainer.max_epochs=1")
    assert status == 0, text


DOCTESTS = [path for path in sorted((ROOT / "fl_lightning").rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", DOCTESTS, ids=lambda path: path.stem)
def test_the_examples_of_docstrings_are_right(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    results = doctest.testmod(import_module(name))
    assert results.attempted > 0
    assert results.failed == 0


def test_a_round_runs_through_the_files_that_the_page_on_architecture_names():
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"^\| \d+ \| \[[\w/.]+\]\(\.\./(fl_lightning/[\w/.]+\.py)\)", page, re.MULTILINE))
    assert len(named) == 12
    ran = set()
    sys.setprofile(lambda frame, event, arg: ran.add(frame.f_code.co_filename))
    try:
        federate(Plain(), 1)
    finally:
        sys.setprofile(None)
    assert not {path for path in named if str(ROOT / path) not in ran}
