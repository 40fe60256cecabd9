"""What ``site --check`` says of the data and the policy of a site."""

import argparse
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from masked_sites import masks
from sites_over_bytes import of

from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.site import check as site_check
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.wire.keys import create_key

ROWS = ["a,b,target", *(f"{k},{k % 3},{k % 2}" for k in range(12))]


def checked(*peers: str, rows: Any = ROWS, own: Any = None, more: Any = None, **policy: Any) -> str:
    """Return what ``site --check`` says of data and policy at a site that has these peers' keys."""
    Path("own.csv").write_text("\n".join(rows) + "\n")
    Path("peers").mkdir(exist_ok=True)
    for name in peers:
        create_key(Path(f"{name}.key")).rename(Path("peers", f"{name}.pub"))
    table = {"path": "own.csv", "kind": "classification", "test_share": 0, "standardize": False, **(own or {})}
    data = {"datamodule": of("TableDataModule", **table), "device": "cpu", "policy": policy, **(more or {})}
    Path("data.yaml").write_text(yaml.safe_dump(data))
    return site_check._data(argparse.Namespace(data="data.yaml", name="a"))


def test_a_site_is_told_what_the_server_would_learn(monkeypatch):
    """And that -9999 may stand for a missing value, but not what Python says of its own sockets."""

    def warned(settings: Any) -> SiteData:
        warnings.warn("unclosed socket", ResourceWarning, stacklevel=2)
        return SiteData(settings)

    monkeypatch.setattr(site_check, "SiteData", warned)
    tells, rows = ["examples", "evaluation/test"], [row.replace("5,2,1", "5,-9999,1") for row in ROWS]
    said = checked(rows=rows, more={"client_test": 0.25}, tells=tells, min_rows=1, digits=3)
    first, form, told, *_ = said.split("; ")
    assert first.startswith("before the first round leave: ")
    assert "name a, digests ['" in first
    assert "num_examples 9, num_validation 0, num_test 3, streams False, sampling [" in first
    assert form.startswith("the update leaves plain: the server reads the model that the site trained, and rows can be recon")
    assert told == "beside it leave the numbers of its training, validation and test examples, and of those of each training"
    assert "; figures of models on its test examples, and of how many, to 3 digits; " in said
    assert "; its rows and persons are counted here alone: if another site holds them, too, their epsilons add up, and " in said
    assert "unclosed" not in said
    assert "note: The column 'b' has -9999 in 1 of 12 rows, and otherwise 0 to 2." in said


def test_a_site_is_told_whose_updates_hide_its_own():
    said = checked("a", "c", "b", update=masks())
    assert "; the update leaves masked, in a sum with those of other sites; beside it leave the mean loss of each " in said
    assert "; the loss and the sums of inputs leave in sums over sites only; " in said
    assert "; a sum has 3 sites or more, of b, c, whose keys are in 'peers'; all sums are over the same sites " in said
    assert "num_examples 1, num_validation 0, num_test 0, streams True; " in said
    said = checked(update={"noise": {"least": 2}})
    assert "; the update leaves with noise of a multiplier of 2 or more, but not masked; " in said
    lost = "; a server could compute the updates of 2 sites that later sums lack ('policy.update.masks.lost'); "
    assert lost in checked(update=masks(lost=2))


def test_a_site_that_could_not_take_part_in_a_sum_is_told():
    need = "has the keys of 1 other site (b), so a sum has 2 sites at most, but 'policy.update.masks.least' is 3"
    with pytest.raises(ConfigurationError, match=re.escape(need)):
        checked("b", update=masks())
    assert "a sum has 2 sites or more, of b" in checked(update=masks(least=2))
    Path("peers/b.pub").write_text("no key")
    with pytest.raises(ConfigurationError, match=r"b\.pub' is not a site's public key"):
        checked(update=masks())


def test_a_device_by_number_is_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert "training would run on cuda:1" in checked(more={"device": "cuda:1"})


def test_the_check_withholds_counts_of_classes_as_the_site_does():
    """All rows of a class are those of one person."""
    rows = ["a,target,patient", *(f"{k},{k % 2},p{0 if k % 2 else k}" for k in range(48))]
    given: dict[str, Any] = {"rows": rows, "own": {"person_column": "patient"}, "tells": ["label_counts"]}
    assert "label_counts" not in checked(**given)
    assert "label_counts [24, 24]" in checked(**given, min_rows=1)
