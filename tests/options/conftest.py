"""Runs that several files look at, or go on from."""

import shutil

import pytest
from private_runs import clients, fit, stop_after


@pytest.fixture(scope="session")
def _stopped_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped") / "run"
    fit(folder, 4, stop_after(2), **clients())
    return folder


@pytest.fixture
def stopped(_stopped_once, tmp_path):
    """A folder in which a run of 4 rounds, whose noise is solved for an epsilon of clients, was stopped after 2."""
    return shutil.copytree(_stopped_once, tmp_path / "stopped")
