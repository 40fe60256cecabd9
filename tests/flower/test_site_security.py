"""What a site accepts from a server: data, never code. Each test is an attempt."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sites_over_bytes import NAMES, SERVERS, prepare, start_site, table

import fl_lightning
from fl_lightning.clients.isolation.client_copy import client_copy
from fl_lightning.errors import ConfigurationError, WireError
from fl_lightning.flower import envelope
from fl_lightning.flower.accepted_classes import default_classes
from fl_lightning.flower.recipe import Recipe, RefusedError
from fl_lightning.functional.model_state import ModelState
from fl_lightning.messages import ClientTask, EvalOrder, Progress, ServerModel
from fl_lightning.types import Pull, Snapshot
from fl_lightning.wire import to_bytes

FEDERATION = "a" * 32
NETWORK = {"class_path": "fl_lightning.MLP", "init_args": {"in_features": 6, "hidden": [5], "num_classes": 3}}
MODEL = {
    "class_path": "fl_lightning.ClassificationTask",
    "init_args": {
        "num_classes": 3,
        "network": NETWORK,
        "loss": {"class_path": "fl_lightning.CrossEntropy", "init_args": {}},
        "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
    },
}


def contract(model: Any = MODEL, **changes: Any) -> dict[str, Any]:
    sections = {
        "strategy": {"class_path": "fl_lightning.FedAvg", "init_args": {}},
        "route": {"class_path": "fl_lightning.ServerRoute", "init_args": {}},
        "local": {"threads": 1},
        "transforms": [],
        "client_evaluation": {},
        "secure_aggregation": None,
        "asynchronous": None,
        "faults": {},
    }
    values = {
        "seed": 0,
        "num_clients": 3,
        "numbers": [0, 1, 2],
        "precision": "32-true",
        "threads": 1,
        "inference_mode": True,
        "logger": False,
        "rounds": 3,
    }
    federation = {**sections, **{name: value for name, value in changes.items() if name in sections}}
    top = {name: value for name, value in changes.items() if name not in sections}
    return {"model": model, "federation": federation, **values, **top}


@pytest.fixture
def site(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    return SERVERS["north"]


def ask(site: Any, kind: str, parts: Any = (), **content: Any) -> dict[str, Any]:
    order = envelope.request(kind, **{"federation": FEDERATION, "client": 0, "contract": contract(), **content})
    return dict(envelope.opened(site.answer({"order": order, **dict(parts)}), ("reply",)))


def server_model() -> ServerModel:
    module = Recipe(default_classes()).build(MODEL, fl_lightning.ClassificationTask, "model")
    state = ModelState(client_copy(module))
    return ServerModel(1, 0, state.tensors(), state.layout, session="s")


def work(site: Any, *orders: Any, model: ServerModel | None = None) -> dict[str, Any]:
    parts = {"model": to_bytes(model or server_model())}
    return ask(site, "work", parts, session="s", model_version=1, orders=list(orders), settlements=[], notes=[])


def order(client: int = 0, **changes: Any) -> ClientTask:
    return ClientTask(client, **{"round_idx": 0, "version": 1, **changes})


def test_an_honest_server_is_answered(site):
    """The requests of this file are refused for what they attempt, not for their form."""
    assert "error" not in ask(site, "prepare")
    (report,) = work(site, order())["replies"]
    assert report.num_examples == 24


# ---------------------------------------------------------------- code

EVIL = "import pathlib\npathlib.Path('executed').write_text('!')\nclass Net: pass\ndef run(*a): pass\n"


@pytest.mark.parametrize(
    "model",
    [
        {"class_path": "evil.Net"},
        {**MODEL, "init_args": {**MODEL["init_args"], "network": {"class_path": "evil.Net"}}},
        {**MODEL, "init_args": {**MODEL["init_args"], "optimizer": "evil.run"}},
        {**MODEL, "init_args": {**MODEL["init_args"], "optimizer": {"class_path": "evil.run"}}},
        {**MODEL, "init_args": {**MODEL["init_args"], "loss": {"class_path": "fl_lightning.losses.evil.Net"}}},
        {"class_path": "fl_lightning.MNISTDataModule", "init_args": {}},
        {"class_path": "builtins.exec"},
        {"class_path": "torch.load"},
        {"class_path": "torch.hub.load"},
        {"class_path": ["fl_lightning.MLP"]},
        {"class_path": "fl_lightning.MLP", "init_args": {}, "dict_kwargs": {"f": "evil.run"}},
    ],
)
def test_nothing_is_imported_that_is_not_on_the_list(model, site, tmp_path):
    (tmp_path / "evil.py").write_text(EVIL)
    sys.path.insert(0, str(tmp_path))
    try:
        assert "RefusedError" in str(ask(site, "prepare", contract=contract(model))["error"])
    finally:
        sys.path.remove(str(tmp_path))
    assert "evil" not in sys.modules
    assert not (tmp_path / "executed").exists()


def test_a_function_is_not_taken_for_a_callable(site):
    """A parser would resolve the path of a function for a parameter of the type Callable."""
    model = {**MODEL, "init_args": {**MODEL["init_args"], "optimizer": "os.system"}}
    assert "RefusedError" in str(ask(site, "prepare", contract=contract(model))["error"])


@pytest.mark.parametrize(
    "local", [{"callbacks": [{"class_path": "lightning.pytorch.callbacks.ModelCheckpoint"}]}, {"callbacks": ["x"]}]
)
def test_callbacks_are_refused(local, site):
    assert "RefusedError" in str(ask(site, "prepare", contract=contract(local=local))["error"])


@pytest.mark.parametrize(
    "network",
    [
        {"class_path": "fl_lightning.ResNet18", "init_args": {"weights": "model"}},
        {"class_path": "fl_lightning.ResNet18", "init_args": {"weights": "https://example.org/w.pt"}},
        {"class_path": "fl_lightning.MLP", "init_args": {"in_features": "../../etc/passwd"}},
        {"class_path": "fl_lightning.MLP", "init_args": {"__class__": 1}},
        {"class_path": "fl_lightning.MLP", "init_args": {"no_such": 1}},
    ],
)
def test_places_and_unknown_arguments_are_refused(network, site):
    model = {**MODEL, "init_args": {**MODEL["init_args"], "network": network}}
    assert "RefusedError" in str(ask(site, "prepare", contract=contract(model))["error"])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({**MODEL, "args": [1]}, r"'model' has the keys \['args'\]. A class has 'class_path' and 'init_args'."),
        ({**MODEL, "init_args": {"num classes": 3}}, r"'model' has the key 'num classes'. Use names of arguments."),
        ({**MODEL, "init_args": {"__class__": 3}}, r"'model' has the key '__class__'. Use names of arguments."),
        ({**MODEL, "init_args": {"loss": {1, 2}}}, r"'model.loss' is a set. Use plain values."),
        ({**MODEL, "init_args": [3]}, r"'model.init_args' must be a mapping."),
    ],
)
def test_other_forms_of_values_are_refused(value, said):
    with pytest.raises(RefusedError, match=said):
        Recipe(default_classes()).check(value, "model")


def test_the_site_decides_about_classes(tmp_path, monkeypatch):
    import yaml

    prepare(tmp_path, monkeypatch)
    path = tmp_path / "north" / "data.yaml"
    text = {"datamodule": table(str(tmp_path / "north" / "own.csv")), "device": "cpu"}
    path.write_text(yaml.safe_dump({**text, "policy": {"default_classes": False, "classes": ["fl_lightning.MLP"]}}))
    site = start_site(tmp_path, "north")
    error = str(ask(site, "prepare")["error"])
    assert "'fl_lightning.ClassificationTask', which this site does not accept" in error
    assert site._work is None


# ---------------------------------------------------------------- policy


def with_policy(tmp_path: Any, **policy: Any) -> Any:
    import yaml

    agreed = {"federations": "any", **policy}
    text = {"datamodule": table(str(tmp_path / "north" / "own.csv")), "device": "cpu", "policy": agreed}
    (tmp_path / "north" / "data.yaml").write_text(yaml.safe_dump(text))
    return start_site(tmp_path, "north")


@pytest.mark.parametrize("name", ["min_noise", "max_rounds", "largest_message", "default_classes", "evaluations"])
def test_a_policy_of_null_is_refused(name, site, tmp_path):
    with pytest.raises(ConfigurationError, match=rf"data.yaml' cannot be read: 'policy.{name}' is null, but needs"):
        with_policy(tmp_path, **{name: None})


@pytest.mark.parametrize("noise", [None, 0.5])
def test_weaker_noise_is_refused(noise, site, tmp_path):
    site = with_policy(tmp_path, min_noise=1.0)
    transform = {
        "class_path": "fl_lightning.ClientPrivacy",
        "init_args": {"max_norm": 1.0, "noise_multiplier": noise, "noise": "local"},
    }
    transforms = [] if noise is None else [transform]
    assert "policy requires 1.0" in str(ask(site, "prepare", contract=contract(transforms=transforms))["error"])
    transform["init_args"]["noise_multiplier"] = 1.5
    assert "error" not in ask(site, "prepare", contract=contract(transforms=[transform]))


@pytest.mark.parametrize("least", [0.0, 1.0])
def test_a_target_epsilon_without_its_noise_is_refused(least, site, tmp_path):
    """An honest server sends the noise that it has solved; the site cannot solve it, and never trains without."""
    site = with_policy(tmp_path, min_noise=least)
    privacy = {"max_norm": 1.0, "target_epsilon": 2.0, "noise": "local"}
    transform = {"class_path": "fl_lightning.ClientPrivacy", "init_args": privacy}
    local = {"threads": 1, "privacy": {"max_grad_norm": 1.0, "target_epsilon": 2.0}}
    for asked in ({"transforms": [transform]}, {"local": local}):
        assert "(code" in str(ask(site, "prepare", contract=contract(**asked))["error"])
        (log,) = tmp_path.rglob("errors.log")
        assert "has not been solved for 'target_epsilon' 2.0" in log.read_text()
        log.unlink()


def test_central_noise_is_not_the_clients(site, tmp_path):
    site = with_policy(tmp_path, min_noise=1.0)
    transform = {"class_path": "fl_lightning.ClientPrivacy", "init_args": {"max_norm": 1.0, "noise_multiplier": 9.0}}
    assert "policy requires 1.0" in str(ask(site, "prepare", contract=contract(transforms=[transform]))["error"])


def noisy(noise: float = 50.0) -> dict[str, Any]:
    return {
        "class_path": "fl_lightning.ClientPrivacy",
        "init_args": {"max_norm": 1.0, "noise_multiplier": noise, "noise": "local"},
    }


NOISY_STEPS = {"threads": 1, "privacy": {"noise_multiplier": 50.0, "max_grad_norm": 1.0, "delta": 1e-5}}
BATCH_NORM = {"class_path": "fl_lightning.LeNet", "init_args": {"num_classes": 3, "batch_norm": True}}


def again(site: Any, session: str, *orders: Any, sent: ServerModel | None = None, **settings: Any) -> dict[str, Any]:
    """A server asks from the start, as after its own restart."""
    from dataclasses import replace

    parts = {"model": to_bytes(replace(sent or server_model(), session=session))}
    asked = {"session": session, "model_version": 1, "orders": list(orders), "settlements": []}
    return ask(site, "work", parts, **asked, contract=contract(**settings))


@pytest.mark.parametrize("how", ["transforms", "steps"])
def test_a_server_that_repeats_a_round_gets_other_noise(how, site, tmp_path):
    """Otherwise it could subtract two messages. They differ by noise of 50 sqrt(2) in each of 53 numbers: 515.

    In steps, it is divided by the 24 examples of a batch and multiplied by the rate of 0.1, at least once.
    """
    site = with_policy(tmp_path, min_noise=1.0)
    settings = {"transforms": [noisy()]} if how == "transforms" else {"local": NOISY_STEPS}
    orders = [order(), order()]
    model = server_model()
    replies = [again(site, f"s{k}", one, sent=model, **settings) for k, one in enumerate(orders)]
    first, second = (reply["replies"][0].model.vector.double() for reply in replies)
    assert (first - second).norm() > (250 if how == "transforms" else 1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"transforms": [noisy()], "strategy": {"class_path": "fl_lightning.Scaffold", "init_args": {}}},
            "Scaffold's clients send control variates with their models",
        ),
        (
            {"transforms": [noisy()], "strategy": {"class_path": "fl_lightning.FedLoss", "init_args": {}}},
            "FedLoss reads metrics that clients compute on their own data",
        ),
        ({"transforms": [noisy(), noisy()]}, "contains ClientPrivacy more than once"),
        ({"transforms": [noisy()], "local": {"threads": 1, "precision": "bf16-true"}}, "at least 32 bits with ClientPrivacy"),
        ({"local": {**NOISY_STEPS, "accumulate_grad_batches": 4}}, "'federation.local.accumulate_grad_batches' must be 1"),
        (
            {"local": NOISY_STEPS, "model": {**MODEL, "init_args": {**MODEL["init_args"], "network": BATCH_NORM}}},
            "cannot separate an example's gradient from the others",
        ),
    ],
)
def test_settings_that_the_required_noise_does_not_cover_are_refused(settings, message, site, tmp_path):
    site = with_policy(tmp_path, min_noise=1.0)
    told = str(ask(site, "prepare", contract=contract(**settings))["error"])
    assert "This site's policy requires noise at the client." in told
    assert message in told


def test_buffers_without_the_required_noise_are_not_sent(site, tmp_path):
    site = with_policy(tmp_path, min_noise=1.0)
    model = {**MODEL, "init_args": {**MODEL["init_args"], "network": BATCH_NORM}}
    module = Recipe(default_classes()).build(model, fl_lightning.ClassificationTask, "model")
    state = ModelState(client_copy(module))
    sent = ServerModel(1, 0, state.tensors(), state.layout, session="s")
    reply = again(site, "s", order(), sent=sent, model=model, transforms=[noisy()])
    assert "The clients send the buffers network." in str(reply["error"])


def test_a_model_past_the_transforms_has_no_noise(site, tmp_path):
    site = with_policy(tmp_path, min_noise=1.0)
    told = str(again(site, "s", order(delivers=False), transforms=[noisy()])["error"])
    assert "The order asks for a model that passes no transforms" in told
    assert "error" not in again(site, "s", order(delivers=False), local=NOISY_STEPS)


def test_a_site_trains_as_often_as_it_allows(site, tmp_path):
    """Under whatever session, round and period a server asks, and after a restart of the site."""
    site = with_policy(tmp_path, max_rounds=3)
    assert "error" not in again(site, "a", order())
    assert "error" not in again(site, "a", order())  # the same request: answered from the store
    assert "error" not in again(site, "b", order())
    site = with_policy(tmp_path, max_rounds=3)
    assert "error" not in again(site, "b", order(period=1))
    for session, asked in (("b", order(period=2)), ("c", order()), ("c", order(round_idx=1))):
        told = str(again(site, session, asked)["error"])
        assert "This site has trained 3 times in this federation, and its 'policy.max_rounds' is 3." in told


def test_more_rounds_and_other_evaluations_are_refused(site, tmp_path):
    site = with_policy(tmp_path, max_rounds=3, evaluations=["test"])
    assert "allows 3" in str(ask(site, "prepare", contract=contract(rounds=4))["error"])
    ring = {"class_path": "fl_lightning.RingFed", "init_args": {"periods": 2}}
    told = str(ask(site, "prepare", contract=contract(rounds=2, route=ring))["error"])
    assert "plans 2 rounds of 2 periods, but this site allows 3" in told
    assert "beyond this site's limit" in str(work(site, order(round_idx=3))["error"])
    asked = EvalOrder(1, 0, "training", "evaluation")
    assert "does not allow evaluation on its training" in str(work(site, asked)["error"])


def test_engines_that_would_occupy_the_site_are_refused_at_the_site(site):
    for local in ({"engine": "stacked"}, {"engine": "fastest"}, {"compile": True}):
        told = str(ask(site, "prepare", contract=contract(local={"threads": 1, **local}))["error"])
        assert "Sites train with the engines auto, trainer and fabric, and do not compile." in told


# ---------------------------------------------------------------- tensors and messages


def changed(tensors: dict[str, Any]) -> ServerModel:
    from dataclasses import replace

    model = server_model()
    return replace(model, tensors={**model.tensors, **tensors})


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
def test_a_model_that_does_not_fit_is_refused(tensors, site):
    assert "WireError" in str(work(site, order(), model=changed(tensors))["error"])


@pytest.mark.parametrize(
    "bad",
    [
        order(client=1),
        order(epochs=-1),
        order(slowness=0.1),
        order(slowness=float("nan")),
        order(period=-1),
        order(round_idx=-1),
        order(start=Snapshot(torch.zeros(7), torch.zeros(0, dtype=torch.int64))),
        order(start=Snapshot(torch.zeros(53, dtype=torch.int32), torch.zeros(0, dtype=torch.int64))),
        order(start=Snapshot(torch.zeros(53), torch.zeros(0))),
        order(pull=Pull(torch.zeros(3), 1.0)),
        ClientTask((0, 0), (0, 0)),  # type: ignore[arg-type]
        Progress(0),
        ClientTask(0, 0, version="1"),  # type: ignore[arg-type]
        ClientTask(0, "0"),  # type: ignore[arg-type]
        EvalOrder(1, 0, "everything", "evaluation"),  # type: ignore[arg-type]
    ],
)
def test_orders_of_wrong_types_lengths_or_clients_are_refused(bad, site):
    reply = work(site, bad)
    assert "WireError" in str(reply["error"]) or "RefusedError" in str(reply["error"])
    assert "error" not in work(site, order())


@pytest.mark.parametrize("federation", ["../../x", "a" * 31, "A" * 32, "", "a" * 32 + "/.."])
def test_a_federations_id_cannot_name_a_place(federation, site, tmp_path):
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert "WireError" in str(ask(site, "prepare", federation=federation)["error"])
    after = sorted(path.name for path in tmp_path.rglob("*") if path.name != "audit.jsonl")
    assert [name for name in before if name != "audit.jsonl"] == after


def test_a_claimed_size_allocates_nothing(site):
    """A few bytes that claim a tensor of 4 TB, and a JSON of a claimed length that is not there."""
    header = json.dumps({"0": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    text = json.dumps({"format": 1, "content": {"tensor": "0"}}).encode()
    bomb = len(text).to_bytes(8, "little") + text + len(header).to_bytes(8, "little") + header
    for content in (bomb, (2**62).to_bytes(8, "little") + b"{}", b"", b"\x80\x04."):
        reply = envelope.opened(site.answer({"order": content}), ("reply",))
        assert "WireError" in str(reply["error"])


def test_deeply_nested_json_is_refused(site):
    text = b'{"format": 1, "content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    content = len(text).to_bytes(8, "little") + text + (2).to_bytes(8, "little") + b"{}"
    assert "Error" in str(envelope.opened(site.answer({"order": content}), ("reply",))["error"])
    assert "error" not in ask(site, "prepare")


def test_a_message_above_the_limit_is_refused_unread(site, tmp_path):
    site = with_policy(tmp_path, largest_message=0.001)
    assert "accepts 0.001 MiB" in str(envelope.opened(site.answer({"order": b"x" * 2000}), ("reply",))["error"])


def test_pickles_and_object_arrays_have_no_way_in(site):
    """The wire has tensors of numbers only."""
    import pickle

    with pytest.raises(WireError):
        to_bytes({"x": object()})
    evil = pickle.dumps({"x": 1})
    assert "WireError" in str(envelope.opened(site.answer({"order": evil}), ("reply",))["error"])


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_never_raise(content):
    site = SERVERS[NAMES[0]]
    reply = envelope.opened(site.answer({"order": content}), ("reply",))
    assert "error" in reply
