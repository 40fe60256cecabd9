from __future__ import annotations

import os
import warnings

import pytest
import torch

os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """One intra-op thread (small models), and a folder of its own for whatever a run writes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        yield
    torch.set_num_threads(threads)
