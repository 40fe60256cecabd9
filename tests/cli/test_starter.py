"""``fl-lightning init``: a project that runs as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command_line import ROOT
from launching import launch

from fl_lightning import ConfigurationError, starter

SCRIPT = "import sys\nfrom fl_lightning.cli.command import main\nsys.exit(main())\n"  # as pip writes it


def in_project(project: Path, *command: str) -> str:
    env = os.environ | {"PYTHONPATH": str(ROOT), "WANDB_MODE": "disabled"}
    done = subprocess.run([sys.executable, *command], cwd=project, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_project_runs(tmp_path, capsys, monkeypatch):
    """By the commands of its README, under a name with a hyphen, as a console script that has no folder on its path."""
    project = tmp_path / "two-moons"
    starter.main([str(project)])
    assert f"cd {project}" in capsys.readouterr().out
    text = "".join(path.read_text() for path in project.rglob("*") if path.is_file())
    assert "two_moons.module.Classifier" in text
    assert "my_project" not in text
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "fl-lightning"
    script.write_text(SCRIPT)
    said = in_project(
        project, str(script), "fit", "--config", "config.yaml", "--trainer.logger=false", "--trainer.max_epochs=5"
    )
    accuracy = float(said.partition("val_accuracy ")[2].split()[0])
    assert accuracy > 0.9, said
    assert (project / "runs" / "first" / "checkpoints" / "best.ckpt").exists()
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert "1 passed" in launch(["-m", "pytest", "-p", "no:cacheprovider"], 120, project)


def test_the_files_of_the_project(tmp_path):
    project = tmp_path / "shop"
    files = starter.create_project(project)
    assert {str(path.relative_to(project)) for path in files} == {
        ".gitignore",
        "README.md",
        "config.yaml",
        "pyproject.toml",
        "shop/__init__.py",
        "shop/data.py",
        "shop/module.py",
        "tests/test_federation.py",
    }
    assert yaml.safe_load((project / "config.yaml").read_text())["data"]["datamodule"]["class_path"] == "shop.data.Moons"


@pytest.mark.parametrize(("name", "package"), [("my-project", "my_project"), ("a.b c", "a_b_c"), ("Zug", "Zug")])
def test_the_package_is_named_like_the_folder(name, package):
    assert starter.package_name(name) == package


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("3d", "'3d' cannot be the name of a Python package"),
        ("class", "'class' cannot be the name of a Python package"),
        ("größe", "cannot be the name of a Python package"),
        ("torch", "'torch' is the name of another package. Choose another name, such as 'my_torch'"),
        ("tests", "'tests' is the name of another package"),
    ],
)
def test_a_name_that_cannot_be_a_package_is_refused(name, said, tmp_path):
    with pytest.raises(ConfigurationError, match=said):
        starter.create_project(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_the_command_to_enter_a_folder_whose_name_has_a_space(tmp_path, capsys):
    starter.main([str(tmp_path / "two moons")])
    assert f"cd '{tmp_path}/two moons'\n" in capsys.readouterr().out


def refused(capsys, *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        starter.main(arguments)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return int(ended.value.code or 0), lines[0]


def test_nothing_is_written_over(capsys, tmp_path):
    (tmp_path / "mine").mkdir()
    starter.create_project(tmp_path / "mine")
    before = (tmp_path / "mine" / "config.yaml").read_bytes()
    status, said = refused(capsys, str(tmp_path / "mine"))
    assert status == 1
    assert said.startswith("fl-lightning init: error: ")
    assert said.endswith("is not empty. Choose a new or empty folder.")
    assert (tmp_path / "mine" / "config.yaml").read_bytes() == before
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        assert re.search(r"Cannot write '.*' \(.*\). Choose a new or empty folder.$", refused(capsys, str(path))[1])


def test_wrong_arguments_are_one_message(capsys):
    assert refused(capsys) == (
        2,
        "fl-lightning init: error: the following arguments are required: folder. All settings: fl-lightning init --help.",
    )
    assert refused(capsys, "one", "two")[0] == 2
