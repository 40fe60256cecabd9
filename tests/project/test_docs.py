"""What the documents say exists, and what exists is documented."""

from __future__ import annotations

import doctest
import re
import sys
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from against_hand import assert_follows, clients_of
from by_hand import averaged, build, flat
from command_line import ROOT, SMALL
from federations import Plain, federate

import fl_lightning
from fl_lightning.config.files import find, names

PAGES = sorted((ROOT / "docs" / "algorithms").glob("*.md"))
EXAMPLES = str(ROOT / "docs" / "examples")


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
        for name in re.findall(r"--(?:config|base)(?:\s+|=)(\w[\w/.]*)", document.read_text()):
            if not name.startswith(("runs/", "NAME", "config.yaml")):  # files that a run or a project has
                assert find(name.rstrip("."), group="studies").is_file(), (document, name)


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "README"], ids=lambda page: page.stem)
def test_every_page_says_when_it_helps_and_when_it_hurts(page):
    text = page.read_text()
    for part in ("**Rule.**", "**When it helps.**", "**When it hurts.**", "**Settings.**", "Source: "):
        assert text.count(part) == 1


def test_links_lead_somewhere():
    links = [(page, link) for page in DOCUMENTS for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())]
    assert not [(page, link) for page, link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", ["trust.md", "masks.md"])
def test_the_tests_that_a_page_names_exist(page):
    file, named = "", 0
    for name, ending in re.findall(r"`(test_\w+)(\.py)?`", (ROOT / "docs" / page).read_text()):
        file = name + ending if ending else file  # the tests of a file follow it
        if not ending:
            named += 1
            assert f"def {name}(" in next((ROOT / "tests").rglob(file)).read_text(), name
    assert named > 5


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "diagrams").glob("*.svg")), ids=lambda path: path.stem)
def test_diagrams_follow_the_theme_and_have_a_title(path):
    root = ElementTree.parse(path).getroot()
    assert root.findtext("{*}title")
    assert "--color-foreground-primary" in path.read_text()
    assert "prefers-color-scheme: dark" in path.read_text()
    assert not [text.attrib for text in root.iter("{http://www.w3.org/2000/svg}text") if "fill" in text.attrib]


def test_the_front_picture_shows_the_runs_of_the_report(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    front = import_module("draw_front")
    assert front.picture() == (ROOT / "docs" / "diagrams" / "adafed_under_attack.svg").read_text()
    tables = (ROOT / "docs" / "studies" / "adafed_simulation_3" / "report.md").read_text().split("## attackers: ")[1:]
    for (attackers, algorithm), curve in front.curves().items():
        table = next(text for text in tables if text.startswith(attackers))
        row = re.findall(r"[\d.]+", re.search(rf"\| {algorithm} \|.*", table)[0])
        assert [float(number) for number in row[:8]] == pytest.approx([x for i in (4, 9, 14, 19) for x in curve[i]], abs=0.006)
    for page in ("README.md", "docs/index.md"):
        assert "4 seeds" in (ROOT / page).read_text()
        assert "over 4 seeds" in tables[0]


def test_every_formula_of_a_page_can_be_rendered():
    latex2mathml = pytest.importorskip("docutils.utils.math.latex2mathml")
    formulas = [text for page in PAGES for text in re.findall(r"\$([^$\n]+)\$", page.read_text())]
    assert len(formulas) > 100
    for formula in formulas:
        assert latex2mathml.tex2mathml(formula, as_block=False).startswith("<math")


def test_no_page_draws_with_characters():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert not [page for page in pages if re.search("[\u2500-\u257f]", page.read_text())]


@pytest.fixture
def norm_bounded(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    yield __import__("norm_bounded")
    del sys.modules["norm_bounded"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_example_with_sums_bounds_every_update(dtype, norm_bounded):
    def step(net, world, t):
        clients = clients_of(net, world)
        w, mean = flat(net)[0], averaged(net, clients, world.sizes)
        changes = [flat(client)[0] - w for client in clients]
        scales = [min(1.0, 0.4 / np.linalg.norm(change)) for change in changes]
        assert min(scales) < 1
        moved = sum(n * s * c for n, s, c in zip(world.sizes, scales, changes, strict=True)) / world.sizes.sum()
        return build(net, w + moved, *flat(mean)[1:])

    assert_follows(dtype, step, strategy=norm_bounded.NormBounded(0.4))


def test_the_example_with_sums_works_from_its_yaml(fl, norm_bounded):
    assert len(Path(EXAMPLES, "norm_bounded.py").read_text().splitlines()) < 60
    yaml = str(ROOT / "docs" / "examples" / "norm_bounded.yaml")
    arguments = ["fit", "--config", yaml, *SMALL, "--trainer.logger=false", "--trainer.max_epochs=1"]
    status, text = fl(*arguments)
    assert status == 0, text
    status, text = fl(*arguments, "--federation.strategy.bound=-1", "--trainer.default_root_dir=r")
    assert status == 1
    assert "error: 'federation.strategy.bound' must be above 0, but is -1.0" in text


DOCTESTS = [path for path in sorted((ROOT / "fl_lightning").rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", DOCTESTS, ids=lambda path: path.stem)
def test_the_examples_of_docstrings_are_right(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    results = doctest.testmod(import_module(name))
    assert results.attempted > 0
    assert results.failed == 0


def test_the_classes_that_readers_begin_with_have_an_example():
    names = "FederatedOrchestrator LocalTraining FederatedDataModule " + fl_lightning._NAMES["strategies"]
    kinds = [getattr(fl_lightning, name) for name in names.split()]
    bases = {"FilteringStrategy", "JointStrategy", "ModelScorer", "RunningStrategy", "Strategy", "WeightedAverage"}
    assert [kind.__name__ for kind in kinds if ">>> " not in kind.__doc__ and kind.__name__ not in bases] == []


SKIPS = [
    (path, *found)
    for path in sorted((ROOT / "docs").rglob("*.md"))
    for found in re.findall(r"<!--- skip: (\w+)(.*)-->", path.read_text())
]


def test_few_blocks_are_not_run_each_for_a_reason():
    """``make docs-test`` runs all other Python blocks."""
    assert len(SKIPS) <= 10
    for path, which, reason in SKIPS:
        assert which == "next", path
        assert re.fullmatch(r' "[^"]{10,}" ', reason), path


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
