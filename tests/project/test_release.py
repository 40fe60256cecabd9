"""What a release promises beside its code: versions, licences, deployment files, public names."""

import re
import sys
from pathlib import Path

import pytest
import yaml

import fl_lightning

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_one_version_everywhere():
    version = fl_lightning.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == version
    assert f"fl_lightning-{version}-py3-none-any.whl" in (ROOT / "docs" / "install.md").read_text()
    for file in ("compose.server.yaml", "compose.site.yaml"):
        for service in yaml.safe_load((DEPLOY / file).read_text())["services"].values():
            assert service["image"] == f"fl-lightning:{version}"


def test_every_dependency_has_its_licence():
    extras = project()["optional-dependencies"]
    own = [extra for extra in extras if extra not in ("test", "docs", "dev", "third-party")]
    wanted = [*project()["dependencies"], *(name for extra in own for name in extras[extra])]
    names = {re.match(r"[\w-]+", text)[0] for text in wanted} - {"fl_lightning"}
    listed = re.findall(r"^\| ([\w-]+) \|", (ROOT / "docs" / "licences.md").read_text(), re.MULTILINE)
    assert names == set(listed) - {"package"}


def test_the_page_lists_the_versions_that_pip_accepts():
    page = (ROOT / "docs" / "install.md").read_text()
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$", page, re.MULTILINE)
    accepted = [f"{name}>={lowest.rpartition('.')[0]},<{below}" for name, lowest, _, below in rows]
    assert [re.sub(r"\[.*\]", "", line) for line in project()["dependencies"]] == accepted
    for _, _, newest, below in rows:
        assert int(below) == int(newest.partition(".")[0]) + 1


def test_the_list_for_checked_installations_satisfies_the_project():
    packaging = pytest.importorskip("packaging.requirements")
    text = (DEPLOY / "requirements.txt").read_text()
    pinned = dict(re.findall(r"^([\w.-]+)==([^ \\]+)", text, re.MULTILINE))
    entries = re.split(r"\n(?=\S)", text.split("\n\n", 1)[1].strip())
    assert len(entries) == len(pinned)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}$", entry) for entry in entries)
    extras = project()["optional-dependencies"]
    for line in [*project()["dependencies"], *extras["flower"], *extras["flower-datasets"]]:
        needed = packaging.Requirement(line)
        if needed.name != "fl_lightning":
            version = pinned[needed.name.lower().replace("_", "-")]
            assert needed.specifier.contains(version), f"{line}: {version}"


@pytest.mark.parametrize(("file", "service"), [("compose.server.yaml", "serve"), ("compose.site.yaml", "site")])
def test_the_containers_commands_have_options_that_exist(file, service):
    command = yaml.safe_load((DEPLOY / file).read_text())["services"][service]["command"]
    assert command[0] == service
    page = (ROOT / "docs" / "real_federation.md").read_text()
    for option in (word.split("=")[0] for word in command if word.startswith("--")):
        assert option in page, option


def test_the_containers_fit_parses(fl):
    command = yaml.safe_load((DEPLOY / "compose.server.yaml").read_text())["services"]["fit"]["command"]
    status, text = fl(*command, "--print_config")
    assert status == 0, text
    assert yaml.safe_load(text)["federation"]["pool"]["class_path"].endswith("FlowerPool")
