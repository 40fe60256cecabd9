"""What a site accepts from a server: data, never code. Each test is an attempt."""

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from asked_site import NOISY, NOISY_STEPS, ask, contract, model, named, noisy, north, opened, order, server_model, told, work
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_lightning.errors import WireError
from fl_lightning.flower.site.recipe import Recipe, RefusedError, default_classes
from fl_lightning.messages import ClientTask, EvalOrder, Progress
from fl_lightning.types import Pull, Snapshot
from fl_lightning.wire import to_bytes

# ---------------------------------------------------------------- code

EVIL = "import pathlib\npathlib.Path('executed').write_text('!')\nclass Net: pass\ndef run(*a): pass\n"
CHECKPOINT = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint"}


@pytest.mark.parametrize(
    "asked",
    [
        {"model": {"class_path": "evil.Net"}},
        {"model": model(network={"class_path": "evil.Net"})},
        {"model": model(optimizer="evil.run")},
        {"model": model(optimizer={"class_path": "evil.run"})},
        {"model": model(loss=named("losses.evil.Net"))},
        {"model": named("MNISTDataModule")},
        {"model": {"class_path": "builtins.exec"}},
        {"model": {"class_path": "torch.load"}},
        {"model": {"class_path": "torch.hub.load"}},
        {"model": {"class_path": ["fl_lightning.MLP"]}},
        {"model": {**named("MLP"), "dict_kwargs": {"f": "evil.run"}}},
        {"model": model(optimizer="os.system")},  # a parser would resolve it for a parameter of the type Callable
        {"local": {"callbacks": [CHECKPOINT]}},
        {"model": model(network=named("ResNet18", weights="model"))},
        {"model": model(network=named("ResNet18", weights="https://example.org/w.pt"))},
        {"model": model(network=named("MLP", in_features="../../etc/passwd"))},
        {"model": model(network=named("MLP", no_such=1))},
    ],
)
def test_nothing_is_imported_that_is_not_on_the_list(asked, monkeypatch):
    """Neither classes nor functions, callbacks, places and unknown arguments."""
    site = north()
    Path("evil.py").write_text(EVIL)
    monkeypatch.syspath_prepend(Path.cwd())
    assert "RefusedError" in told(ask(site, "prepare", contract=contract(**asked)))
    assert "evil" not in sys.modules
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({**model(), "args": [1]}, "'model' has other keys than 'class_path' and 'init_args', a mapping."),
        ({**model(), "init_args": {"num classes": 3}}, r"'model' has the key 'num classes'. Use names of arguments."),
        ({**model(), "init_args": {"__class__": 3}}, r"'model' has the key '__class__'. Use names of arguments."),
        ({**model(), "init_args": {"loss": {1, 2}}}, r"'model.loss' is a set. Use plain values."),
        ({**model(), "init_args": [3]}, "'model' has other keys than 'class_path' and 'init_args', a mapping."),
    ],
)
def test_other_forms_of_values_are_refused(value, said):
    with pytest.raises(RefusedError, match=said):
        Recipe(default_classes()).check(value, "model")


# ---------------------------------------------------------------- noise


@pytest.mark.parametrize("policy", [{}, {"update": {"noise": {"least": 1.0}}}])
@pytest.mark.parametrize(
    "asked",
    [
        {"transforms": [noisy(noise_multiplier=None, target_epsilon=2.0)]},
        {"local": {"threads": 1, "privacy": {"max_grad_norm": 1.0, "target_epsilon": 2.0}}},
    ],
)
def test_a_target_epsilon_without_its_noise_is_refused(asked, policy):
    """An honest server sends the noise that it has solved; the site cannot solve it, and never trains without."""
    assert "(code" in told(ask(north(**policy), "prepare", contract=contract(**asked)))
    assert "has not been solved for 'target_epsilon' 2.0" in Path("north/state/errors.log").read_text()


@pytest.mark.parametrize("noise", [NOISY, {"local": NOISY_STEPS}], ids=["transforms", "steps"])
def test_a_server_that_repeats_a_round_gets_other_noise(noise):
    """Otherwise it could subtract two messages. They differ by noise of 50 sqrt(2) in each of 53 numbers: 515.

    In steps, it is divided by the 24 examples of a batch and multiplied by the rate of 0.1, at least once.
    """
    site, sent = north(update={"noise": {"least": 1.0}}), server_model()
    first, second = (
        work(site, session=session, sent=sent, **noise)["replies"][0].model.vector.double() for session in ("a", "b")
    )
    assert (first - second).norm() > (250 if noise is NOISY else 1.0)


def test_buffers_without_the_required_noise_are_not_sent():
    values = model(network=named("LeNet", num_classes=3, batch_norm=True))
    reply = work(north(update={"noise": {"least": 1.0}}), sent=server_model(values), model=values, **NOISY)
    assert "The clients send the buffers network." in told(reply)


def test_a_model_past_the_transforms_has_no_noise():
    site = north(update={"noise": {"least": 1.0}})
    assert "The order asks for a model that passes no transforms" in told(work(site, order(delivers=False), **NOISY))
    assert not told(work(site, order(delivers=False), local=NOISY_STEPS))


# ---------------------------------------------------------------- tensors and messages

FIRST = "network.layers.1.weight"


@pytest.mark.parametrize(
    "tensors",
    [
        {FIRST: torch.zeros(5, 7)},
        {FIRST: torch.zeros(30)},
        {FIRST: torch.zeros(5, 6, dtype=torch.float64)},
        {FIRST: torch.zeros(5, 6, dtype=torch.int64)},
        {"more": torch.zeros(1)},
    ],
)
def test_a_model_that_does_not_fit_is_refused(tensors):
    sent = server_model()
    assert "WireError" in told(work(north(), sent=replace(sent, tensors={**sent.tensors, **tensors})))


NO_COUNTERS = torch.zeros(0, dtype=torch.int64)


@pytest.mark.parametrize(
    "bad",
    [
        order(client=1),
        order(epochs=-1),
        order(slowness=0.1),
        order(slowness=float("nan")),
        order(period=-1),
        order(round_idx=-1),
        order(start=Snapshot(torch.zeros(7), NO_COUNTERS)),
        order(start=Snapshot(torch.zeros(53, dtype=torch.int32), NO_COUNTERS)),
        order(start=Snapshot(torch.zeros(53), torch.zeros(0))),
        order(pull=Pull(torch.zeros(3), 1.0)),
        ClientTask((0, 0), (0, 0)),  # type: ignore[arg-type]
        Progress(0),
        ClientTask(0, 0, version="1"),  # type: ignore[arg-type]
        ClientTask(0, "0"),  # type: ignore[arg-type]
        EvalOrder(1, 0, "everything", "evaluation"),  # type: ignore[arg-type]
    ],
)
def test_orders_of_wrong_types_lengths_or_clients_are_refused(bad):
    site = north()
    said = told(work(site, bad))
    assert "WireError" in said or "RefusedError" in said
    assert not told(work(site))


@pytest.mark.parametrize("federation", ["../../x", "a" * 31, "A" * 32, "", "a" * 32 + "/.."])
def test_a_federations_id_cannot_name_a_place(federation):
    site = north()

    def files() -> list[Path]:
        return sorted(path for path in Path().resolve().parent.rglob("*") if path.name != "audit.jsonl")

    before = files()
    assert "WireError" in told(ask(site, "prepare", federation=federation))
    assert files() == before


def enveloped(text: bytes, rest: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text + rest


def test_a_claimed_size_allocates_nothing_and_nesting_ends_nothing():
    """A few bytes that claim a tensor of 4 TB, a JSON of a claimed length that is not there, one of 100,000 lists, a pickle."""
    site = north()
    header = json.dumps({"0": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    bomb = enveloped(json.dumps({"format": 1, "content": {"tensor": "0"}}).encode(), enveloped(header))
    deep = enveloped(b'{"format": 1, "content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", enveloped(b"{}"))
    for content in (bomb, (2**62).to_bytes(8, "little") + b"{}", b"", b"\x80\x04.", deep, pickle.dumps({"x": 1})):
        assert "WireError" in told(opened(site.answer({"order": content})))
    assert not told(ask(site, "prepare"))
    with pytest.raises(WireError):  # the wire has tensors of numbers only
        to_bytes({"x": object()})


def test_a_message_above_the_limit_is_refused_unread():
    assert "accepts 1e-06 GiB" in told(opened(north(machine={"memory": 1e-6}).answer({"order": b"x" * 2000})))


@pytest.fixture
def anyone() -> Any:
    return north()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300))
def test_random_bytes_never_raise(content, anyone):
    assert told(opened(anyone.answer({"order": content})))
