"""Files of a run are UTF-8, whatever encoding the system's locale has."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command_line import QUIET, ROOT

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "utf-8"}
SITES = {"Zürich": {"images": 6}, "Łódź": {"images": 9}}


def column(path: Path, name: str) -> set[str]:
    with path.open(newline="", encoding="utf-8") as file:
        return {row[name] for row in csv.DictReader(file)}


@pytest.mark.slow
def test_names_beyond_ascii_in_a_locale_that_has_only_ascii(tmp_path):
    """Files that a user writes, ``config.yaml`` and the clients' tables, also where a resumed run appends to them."""
    cells = {"class_path": "SimulatedCellsDataModule", "init_args": {"sites": SITES, "test_images": 4}}
    study = {"base": "cell_counting", "settings": {"trainer.default_root_dir": "Łódź"}, "over": {"seed": [0]}}
    for name, written in {"own": {"data": {"datamodule": "cells.yaml"}}, "cells": cells, "study": study}.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(written, allow_unicode=True), encoding="utf-8")
    environment = {**os.environ, **ASCII, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}

    folder = ["--trainer.default_root_dir=out", "--trainer.logger=false"]
    first = ["fit", "--config=cell_counting", "--config=own.yaml", *QUIET, *folder, "--trainer.max_epochs=1"]
    second = ["fit", "--config=out/config.yaml", "--trainer.max_epochs=2", "--ckpt_path=last"]
    # One process, because most of its time are imports.
    both = f"from fl_lightning.cli.federation_cli import main; main({first!r}); main({second!r})\n"
    compare = "from fl_lightning.studies.commands import _parser as of; print(of('compare').parse_args(['-c', 'study.yaml']))"
    command = [sys.executable, "-c", both + compare]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Łódź" in done.stdout.splitlines()[-1]
    kept = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text(encoding="utf-8"))
    assert SITES.keys() == kept["data"]["datamodule"]["init_args"]["sites"].keys()
    assert column(tmp_path / "out" / "clients.csv", "client") == SITES.keys()
    assert column(tmp_path / "out" / "client_rounds.csv", "client") == SITES.keys()
