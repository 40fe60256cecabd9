"""``fl-lightning init``: a project that runs as it is."""

import os
import re
import subprocess
import sys

import pytest
import torch
from command_line import ROOT
from launching import launch

from fl_lightning import starter

SCRIPT = "import sys\nfrom fl_lightning.cli.command import main\nsys.exit(main())\n"  # as pip writes it


@pytest.mark.slow
def test_the_project_runs(tmp_path, capsys, monkeypatch):
    """By the commands of its README, under a name with a hyphen, as a console script that has no folder on its path."""
    project = tmp_path / "two-moons"
    starter.main([str(project)])
    assert f"cd {project}\n" in capsys.readouterr().out
    starter.main([str(tmp_path / "two moons")])
    assert f"cd '{tmp_path}/two moons'\n" in capsys.readouterr().out
    files = {str(path.relative_to(project)): path.read_text() for path in project.rglob("*") if path.is_file()}
    assert files.keys() == {
        *(".gitignore", "README.md", "config.yaml", "pyproject.toml", "tests/test_federation.py"),
        *(f"two_moons/{name}.py" for name in ("__init__", "data", "module")),
    }
    assert "two_moons.module.Classifier" in files["config.yaml"]
    assert "my_project" not in "".join(files.values())
    script = tmp_path / "bin" / "fl-lightning"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    fit = [str(script), "fit", "--config", "config.yaml", "--trainer.logger=false", "--trainer.max_epochs=5"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "WANDB_MODE": "disabled"}
    done = subprocess.run([sys.executable, *fit], cwd=project, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(done.stdout.partition("val_accuracy ")[2].split()[0]) > 0.9, done.stdout
    assert (project / "runs" / "first" / "checkpoints" / "best.ckpt").exists()
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert "1 passed" in launch(["-m", "pytest", "-p", "no:cacheprovider"], 120, project)


@pytest.mark.slow
def test_a_lightning_cli_of_ones_own_is_federated_as_the_page_says(tmp_path):
    """And resumed. Its other blocks are run as the page's."""
    page = (ROOT / "docs/your_module.md").read_text()
    module, *_, cli = re.findall(r"^```python\n(.*?)^```", page[: page.index("config.yaml")], re.MULTILINE | re.DOTALL)
    (tmp_path / "my_script.py").write_text(module + cli)
    (tmp_path / "config.yaml").write_text(re.findall(r"^```yaml\n(# config\.yaml.*?)^```", page, re.MULTILINE | re.DOTALL)[0])
    fit = ["my_script.py", "fit", "--config", "config.yaml"]
    launch(fit, 120, tmp_path)
    assert {path.name for path in tmp_path.rglob("*.csv")} >= {"partition.csv", "clients.csv"}
    launch([*fit, "--ckpt_path", "last", "--trainer.max_epochs", "4"], 120, tmp_path)
    saved = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)
    assert saved["epoch"] == 3


@pytest.mark.parametrize(("name", "package"), [("my-project", "my_project"), ("a.b c", "a_b_c"), ("Zug", "Zug")])
def test_the_package_is_named_like_the_folder(name, package):
    assert starter.package_name(name) == package
