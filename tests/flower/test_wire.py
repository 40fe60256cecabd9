"""Messages as bytes and back: the same values, the same bits, and nothing that is executed."""

import json
import math
import pickle
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fl_lightning.errors import WireError
from fl_lightning.flower.validation import require_message
from fl_lightning.messages import (
    ClientInfo,
    ClientTask,
    EvalOrder,
    EvalReport,
    ModelLayout,
    Note,
    Progress,
    Question,
    RoundCommit,
    ServerModel,
)
from fl_lightning.types import ClientFailure, ClientUpdate, Compressed, Pull, Snapshot
from fl_lightning.wire import FORMAT, MESSAGES, from_bytes, to_bytes

ODD = (
    torch.tensor([1.5, math.nan, math.inf, -math.inf, -0.0]),
    torch.tensor(3.25, dtype=torch.bfloat16),
    torch.tensor([1.0, 1e-40], dtype=torch.float64),
    torch.zeros(0),
    torch.zeros(2, 0, 3, dtype=torch.float16),
    torch.tensor(7),
    torch.tensor([True, False]),
    torch.arange(12.0).view(3, 4)[:, 1],  # a view with gaps
    torch.tensor([-(2**63), 2**63 - 1]),
)
SNAPSHOT = Snapshot(ODD[0], ODD[8])
LAYOUT = ModelLayout((True, False), {"": (True, None), "net.0": (False, True)})
MORE: dict[str, Any] = {"score": 1.0, "normalizer": None, "optimizer": "SGD", "model": SNAPSHOT, "extras": {"control": ODD[1]}}
UPDATE = ClientUpdate(3, 1, 10, 4, 0.5, {"loss": math.nan}, **MORE)
QUESTION = Question({"class_path": "m.M", "init_args": {"thresholds": (0.1, 1)}}, 9)
EXAMPLES: list[Any] = [
    ServerModel(2, 1, {f"t{k}": t for k, t in enumerate(ODD)}, LAYOUT, {"c": ODD[2]}),
    ClientTask(3, 1, 1, 2, 1.5, Pull(ODD[3], 0.1), True, Progress(4, 20), SNAPSHOT, False, 2),
    UPDATE,
    ClientFailure(1, 1, "OSError: a 'quoted' \n cause", 3),
    EvalOrder(2, 0, "test", "evaluation", SNAPSHOT, False, (ClientTask(0, 7),), 5),
    EvalReport(0, -math.inf),
    EvalOrder(2, 0, "test", "question", question=QUESTION),
    EvalReport(0, math.nan, 12, (0.25, math.inf), (ODD[0],), {"tp": ODD[5]}, "why", "why not"),
    Note("own", 2, {"step": "keys", "shares": {"1": "ab"}, "delivered": (0, 1)}),
    RoundCommit(1, (0, 3), -1),
    ClientInfo("Krankenhaus Süd", 12, (3, 0, 9), num_test=4),
    LAYOUT,
    Progress(3, None),
    Compressed(torch.tensor([1, 255], dtype=torch.uint8), ODD[3], ODD[8], torch.tensor([0, 5]), ODD[0], 8, 3),
    Compressed(torch.tensor([1.5, -3e38]).bfloat16(), ODD[3], ODD[8], changes=True),
]


def equal(one: Any, other: Any) -> bool:
    """Field by field, tensors bit by bit."""
    if isinstance(one, Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        return same and one.contiguous().view(-1).tolist().__repr__() == other.contiguous().view(-1).tolist().__repr__()
    if type(one) in MESSAGES.values():
        names = [field.name for field in fields(one) if field.name != "version" or not isinstance(one, Snapshot)]
        return type(one) is type(other) and all(equal(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return repr(one) == repr(other)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_there_and_back(message):
    assert equal(from_bytes(to_bytes(message)), message)


def test_every_kind_of_message_is_tried():
    seen = json.dumps([to_bytes(message)[8:2000].decode("latin1") for message in EXAMPLES])
    assert all(f'message\\": \\"{name}\\"' in seen for name in MESSAGES)


dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8])
tensors = st.builds(
    lambda dtype, shape, seed: (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 100).to(dtype),
    dtypes,
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 99),
)
texts = st.text(max_size=5)


@given(st.dictionaries(texts, tensors, max_size=3), st.dictionaries(texts, st.floats(), max_size=3), st.none() | st.floats())
def test_any_update_comes_back(extras, metrics, loss):
    update = ClientUpdate(0, 0, 1, 1, loss, metrics, extras=extras)
    assert equal(from_bytes(to_bytes(update)), update)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_steps", 2**63),
        ("num_steps", -(2**63)),
        ("num_steps", 4.0),
        ("num_steps", True),
        ("seconds", 2**63),
        ("seconds", "1"),
        ("metrics", {"loss": "low"}),
        ("metrics", {"loss": 0.5, "accuracy": None}),
        ("metrics", [("loss", 0.5)]),
        ("extras", {"control": [1.0]}),
    ],
)
def test_an_update_with_a_field_of_another_type_is_refused(name, value):
    require_message(replace(UPDATE, num_steps=2**63 - 1, seconds=3, metrics={"loss": 0.5, "steps": 7}), ClientUpdate)
    with pytest.raises(WireError, match=f"The field '{name}' of ClientUpdate has the wrong type"):
        require_message(replace(UPDATE, **{name: value}), ClientUpdate)


def test_two_copies_are_different_contents_to_a_resident_module():
    assert from_bytes(to_bytes(SNAPSHOT)).version is not SNAPSHOT.version


def test_a_part_of_a_large_tensor_is_sent_alone():
    assert len(to_bytes(Snapshot(torch.zeros(100_000)[:10], torch.zeros(0)))) < 2000


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "Cannot send a value of type object"),
        (print, "Cannot send a value of type builtin_function_or_method"),
        (ClientUpdate(0, 0, 1, 1, metrics={"a": object()}), "Cannot send a value of type object"),  # type: ignore[dict-item]
        (ClientUpdate(0, 0, 1, 1, metrics={1: 2.0}), r"Cannot send a mapping with the keys \[1\]"),  # type: ignore[dict-item]
    ],
)
def test_what_no_message_holds_is_not_sent(value, message):
    with pytest.raises(WireError, match=message):
        to_bytes(value)


class Payload:
    ran = False

    def __reduce__(self) -> Any:
        return setattr, (Payload, "ran", True)


def envelope(content: Any, version: Any = FORMAT, tensors: Any = (), rest: bytes = b"") -> bytes:
    text = json.dumps({"format": version, "tensors": tensors, "content": content}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + rest


def claiming(*tensor: Any, rest: bytes = bytes(8)) -> bytes:
    """Return a message that claims a tensor of this type and shape."""
    return envelope({}, tensors=[[*tensor]], rest=rest)


NONE, UNREADABLE, COUNT = "not a message", "cannot be read", "their number is not that of its tensors"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", NONE),
        (b"\xff" * 40, NONE),
        (pickle.dumps(Payload()), NONE),
        (to_bytes(EXAMPLES[0])[:-3], NONE),
        (envelope({}, FORMAT + 1), f"format {FORMAT + 1}, but this version of fl_lightning reads format {FORMAT}"),
        (envelope({"message": "Popen", "fields": {"args": "true"}}), UNREADABLE),
        (envelope({"message": "Snapshot", "fields": {"surprise": 1}}), UNREADABLE),
        (envelope({"tensor": "9"}), UNREADABLE),
        (envelope({"tensor": 0}), UNREADABLE),
        (envelope({"tensor": -1}, tensors=[["uint8", 8]], rest=bytes(8)), UNREADABLE),
        (claiming("object", 1), NONE),
        (claiming("float32", 3), NONE),
        (claiming("float32", -1), "a tensor has an impossible shape"),
        (claiming("float32", 2.0), "a tensor has an impossible shape"),
        (claiming("float32", 2**59, 2**59), NONE),
        (claiming("float32", 2**59, 0), COUNT),
        (claiming("uint8", 1, rest=bytes(16)), COUNT),
        (claiming("bool", 1, rest=b"\2" + bytes(7)), "a truth value is neither 0 nor 1"),
        (envelope({}, tensors=[[]]), NONE),
        (envelope({}, tensors=None), NONE),
        (envelope({"float": "os.system"}), UNREADABLE),
    ],
)
def test_other_bytes_are_refused_and_nothing_runs(content, message):
    with pytest.raises(WireError, match=message):
        from_bytes(content)
    assert not Payload.ran


def test_a_message_is_copied_once_in_each_direction():
    """A large model is in memory once as a message, also when it is read."""
    words = torch.arange(1000)
    content = to_bytes({"words": words})
    assert len(content) < 8 * len(words) + 200
    read = from_bytes(content)["words"]
    content[-8:] = (7).to_bytes(8, "little")
    assert read[-1] == 7
    assert words[-1] == 999
