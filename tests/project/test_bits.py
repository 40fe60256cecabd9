"""The fingerprint of results: what it must see, what it must not see, and that it repeats itself."""

import json

import bits
import pytest
import torch
from bits_record import digest

from fl_lightning import ClientUpdate, FedAvg
from fl_lightning.types import Snapshot

ONE = torch.tensor([1.0, 0.0])
NEXT = torch.nextafter(ONE, torch.tensor(2.0))


@pytest.mark.parametrize("other", [NEXT, ONE.double(), ONE[None], ONE * torch.tensor([1.0, -1.0]), [1.0, 0.0]])
def test_a_digest_sees_the_last_bit_the_type_the_shape_and_the_sign(other):
    assert digest({"a": ONE}) == digest({"a": ONE.clone()}) != digest({"a": other})


def test_a_digest_sees_no_order_of_names_no_times_and_no_identities():
    one = ClientUpdate(0, 1, 7, 2, seconds=1.0, model=Snapshot(ONE, ONE.long()), metrics={"a": 1.0, "b": 2.0})
    same = ClientUpdate(0, 1, 7, 2, seconds=9.0, model=Snapshot(ONE, ONE.long()), metrics={"b": 2.0, "a": 1.0})
    assert digest(one) == digest(same) != digest(one.with_state(NEXT))


def test_differences_are_one_line_each():
    before = {"a": {"x": {"w": "1", "v": [1, 2]}, "y": {"refused": "DataError", "message": "no"}}, "b": 1}
    after = {"a": {"x": {"w": "2", "v": [1, 3]}, "y": {"refused": "DataError", "message": "none"}}, "c": 1}
    lines = ["a / x / w: 1 became 2", "a / x / v / 1: 2 became 3", "b: only in the first file", "c: only in the second file"]
    assert list(bits.differences(before, after)) == lines


@pytest.mark.slow
def test_a_run_repeats_itself_and_a_changed_weight_is_seen(monkeypatch):
    """Over bytes, too, where a process counts the versions of models."""
    run = lambda: json.loads(json.dumps(bits.bits(["fedavg"], ["trainer", "bytes"])))  # noqa: E731
    first = run()
    assert list(bits.differences(first, run())) == []
    monkeypatch.setattr(FedAvg, "weight", lambda strategy, update: update.num_examples + 2.0**-40)
    changed = [line.partition(":")[0] for line in bits.differences(first, run())]
    for way in ("trainer", "bytes"):
        assert f"fedavg / {way} / round 0 / fields at the server / 0 / weight" in changed
        assert f"fedavg / {way} / round 0 / strategy reads" not in changed
