"""What runs with the six packages that fl_lightning requires, and nothing of its extras: the import, a fit, and its page."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDE = """
import importlib.metadata
from importlib.machinery import PathFinder

EXTRAS = set("cryptography dp_accounting flwr flwr_datasets h5py matplotlib mlxtend onnx onnxruntime onnxscript opacus optuna "
             "optuna_integration pandas pyarrow scipy sklearn tabulate".split())


def find_spec(cls, name, path=None, target=None, of=PathFinder.find_spec):
    return None if name.partition(".")[0] in EXTRAS else of(name, path, target)


def distribution(name, of=importlib.metadata.distribution):
    if name.lower().replace("-", "_").replace("scikit_learn", "sklearn") in EXTRAS:
        raise importlib.metadata.PackageNotFoundError(name)
    return of(name)


PathFinder.find_spec = classmethod(find_spec)
importlib.metadata.distribution = distribution
"""
"""Code that Python runs as it starts, from the file sitecustomize.py."""


def run(*arguments: str) -> tuple[int, str]:
    Path("hide").mkdir(exist_ok=True)
    Path("hide/sitecustomize.py").write_text(HIDE)
    paths = [str(Path("hide").absolute()), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *arguments], env=own, capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_fit_and_its_page_need_no_extra():
    """And 'compare' and 'report' say which they need; the page of a run is written again without them."""
    fit = ("fit", "--config=kmeans_simulated", "--trainer.max_epochs=2", "--trainer.accelerator=cpu")
    status, said = run("-m", "fl_lightning", *fit, "--trainer.default_root_dir=own")
    assert status == 0, said
    assert f"Report: {Path('own/report.html')}" in said
    text = Path("own/report.html").read_text()
    assert '<p class="soft"><strong>At the end.</strong> After the last round.</p>' in text
    assert run("-m", "fl_lightning", "report", "own") == (0, "Report: own/report.html\n")
    status, said = run("-m", "fl_lightning", "fit", "--help", "AdaFed")
    assert (status, "power <float> = 1.0" in said) == (0, True), said
    status, said = run("-m", "fl_lightning", *fit, "--federation.strategy=FedAvgg")
    assert (status, "Did you mean FedAvg, FedAvgM" in said) == (2, True), said
    for command in (("compare", "--base=kmeans_simulated"), ("report", "--table=table.csv")):
        status, said = run("-m", "fl_lightning", *command)
        assert status == 1
        assert "Install them with pip install 'fl_lightning[compare]'" in said


@pytest.mark.slow
def test_the_package_and_its_names_need_no_extra():
    """Every public name but those of studies, which say what they need."""
    code = """
import fl_lightning
for name in dir(fl_lightning):
    try:
        getattr(fl_lightning, name)
    except fl_lightning.ConfigurationError as error:
        print(name, error)
"""
    status, said = run("-c", code)
    assert (status, said.count("pip install"), "Study A study needs pandas" in said) == (0, 1, True), said
