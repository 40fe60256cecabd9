"""What ``site --check`` says of the data and the policy of a site."""

from __future__ import annotations

import argparse
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.site import check as site_check
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.settings import read_settings
from fl_lightning.flower.wire.keys import create_key


def test_a_site_is_told_what_the_server_would_learn(monkeypatch):
    """And that -9999 may stand for a missing value, but not what Python says of its own sockets."""

    def warned(data: SiteData) -> SiteData:
        warnings.warn("unclosed socket", ResourceWarning, stacklevel=2)
        return data

    rows = [f"{k},{k % 3 - (9999 if k == 5 else 0)},{k % 2}" for k in range(12)]
    Path("own.csv").write_text("\n".join(["a,b,target", *rows]).replace("-9997", "-9999") + "\n")
    table = "{path: own.csv, kind: classification, test_share: 0, standardize: false}"
    policy = "policy: {evaluations: [test], ranges: true, min_examples: 1}\nclient_test: 0.25\n"
    Path("data.yaml").write_text(f"datamodule: {{class_path: TableDataModule, init_args: {table}}}\ndevice: cpu\n{policy}")
    monkeypatch.setattr(site_check, "SiteData", lambda settings: warned(SiteData(settings)))
    said = site_check._data(argparse.Namespace(data="data.yaml", name="a", schema=None, folder=None))
    assert said.startswith("the server would learn the name 'a', 9 training examples; 0 validation and 3 test examples; ")
    assert "; the ranges of its features, to two digits; of each training: the update, train_loss, the number of steps " in said
    assert "and the number of examples, the seconds; evaluations that 'policy' allows: test; " in said
    assert "; its rows and persons are counted here alone: if another site holds them, too, their epsilons add up, and " in said
    assert "unclosed" not in said
    assert "note: The column 'b' has -9999 in 1 of 12 rows, and otherwise 0 to 2." in said


def checked_with(tmp_path: Path, *peers: str, **policy: Any) -> str:
    """Return what ``site --check`` says of data and policy at a site that has these peers' keys."""
    Path("own.csv").write_text("\n".join(["a,b,target", *(f"{k},{k % 3},{k % 2}" for k in range(12))]) + "\n")
    (tmp_path / "peers").mkdir(exist_ok=True)
    for name in peers:
        create_key(tmp_path / f"{name}.key").rename(tmp_path / "peers" / f"{name}.pub")
    table = {"path": "own.csv", "kind": "classification", "test_share": 0, "standardize": False}
    data = {"datamodule": {"class_path": "TableDataModule", "init_args": table}, "device": "cpu"}
    Path("data.yaml").write_text(yaml.safe_dump({**data, "policy": {"peers": "peers", **policy}}))
    return site_check._data(argparse.Namespace(data="data.yaml", name="a", schema=None, folder=None))


def test_a_site_is_told_whose_updates_hide_its_own(tmp_path):
    said = checked_with(tmp_path, "a", "c", "b", secure_aggregation="required")
    assert "; the update leaves only masked, in a sum of 3 sites or more ('policy.min_cohort'); all sums " in said
    assert "; the keys in 'peers' admit b, c; " in said
    assert "; of each training: the masked update with its loss, the number of steps and the number of examples; " in said
    assert "the update, train_loss" not in said
    said = checked_with(tmp_path)
    assert "; masks are allowed, not required ('policy.secure_aggregation'), so a server can ask for the update" in said
    assert "of each training: the update, train_loss, " in said


def test_a_site_that_could_not_take_part_in_a_sum_is_told(tmp_path):
    need = "'policy.peers' has the keys of 1 other site (b), so a sum has 2 sites at most, but 'policy.min_cohort' is 3"
    with pytest.raises(ConfigurationError, match=re.escape(need)):
        checked_with(tmp_path, "b", secure_aggregation="required")
    assert "in a sum of 2 sites or more" in checked_with(tmp_path, secure_aggregation="required", min_cohort=2)
    (tmp_path / "peers" / "b.pub").write_text("no key")
    with pytest.raises(ConfigurationError, match=r"b\.pub' is not a site's public key"):
        checked_with(tmp_path, secure_aggregation="required")


def test_a_device_by_number_is_used(monkeypatch):
    embedded = "datamodule: {class_path: fl_lightning.MNISTDataModule, init_args: {source: embedded}}\n"
    Path("data.yaml").write_text(embedded + "device: cuda:1\n")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert read_settings(Path("data.yaml")).torch_device() == torch.device("cuda:1")


def test_the_check_withholds_counts_of_classes_as_the_site_does():
    """All rows of a class are those of one person."""
    rows = [f"{k},{k % 2},p{0 if k % 2 else k}" for k in range(48)]
    Path("own.csv").write_text("\n".join(["a,target,patient", *rows]) + "\n")
    table = "{path: own.csv, kind: classification, test_share: 0, standardize: false, person_column: patient}"
    data = f"datamodule: {{class_path: TableDataModule, init_args: {table}}}\ndevice: cpu\npolicy: {{label_counts: true}}\n"
    Path("data.yaml").write_text(data)
    said = site_check._data(argparse.Namespace(data="data.yaml", name="a", schema=None, folder=None))
    assert "the counts of the classes" not in said
    assert "not the counts of classes, of which one is below 10 ('policy.min_examples')" in said
