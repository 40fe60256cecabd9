"""Sites that send what they should not: each harms only itself, and the server says which one it was."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sites_over_bytes import (
    HOOK,
    NAMES,
    SERVERS,
    configuration,
    federate,
    give_parts,
    prepare,
    same_bits,
    start_site,
)

from fl_lightning.errors import ClientError
from fl_lightning.flower import envelope
from fl_lightning.flower.policy import Policy
from fl_lightning.flower.replies import evaluations_in
from fl_lightning.messages import EvalReport
from fl_lightning.types import Compressed, Snapshot
from fl_lightning.wire import FORMAT

EVERY = {"every_n_rounds": 1, "metric": "val_accuracy"}
SKIP = {"faults": {"policy": "skip"}}


@pytest.fixture(autouse=True)
def _no_hook():
    yield
    HOOK.clear()


def forged(reply: bytes, **changes: Any) -> bytes:
    """Return a site's reply with another update in it."""
    (update,) = envelope.opened(reply, ("reply",))["replies"]
    return envelope.reply(replies=[replace(update, **changes)], releases={})


def broken_model(reply: bytes, change: Any) -> bytes:
    model = envelope.opened(reply, ("reply",))["replies"][0].model
    return forged(reply, model=change(model))


def nested(reply: bytes) -> bytes:
    text = b'{"format": 1, "content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    return len(text).to_bytes(8, "little") + text + (2).to_bytes(8, "little") + b"{}"


def badly_compressed(reply: bytes, **changes: Any) -> bytes:
    model = envelope.opened(reply, ("reply",))["replies"][0].model
    size = model.vector.numel()
    good = Compressed(torch.zeros(size, dtype=torch.uint8), torch.zeros(0), model.counters, None, torch.ones(1), 8, size)
    return forged(reply, model=None, compressed=replace(good, **changes))


def of_another_dtype(reply: bytes) -> bytes:
    """Name a type of 8 bits that messages do not have."""
    text = json.dumps({"format": FORMAT, "tensors": [["float8_e4m3fn", 8]], "content": {"tensor": 0}}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(8)


def moving(model: Snapshot, moved: dict[str, torch.Tensor]) -> Snapshot:
    return Snapshot(model.vector, model.counters, moved)


def releasing(reply: bytes, releases: Any) -> bytes:
    return envelope.reply(replies=envelope.opened(reply, ("reply",))["replies"], releases=releases)


WEIGHT = "network.layers.1.weight"
BIG = 10**400
"""A whole number that no float holds."""

HOSTILE = {
    "noise": lambda reply: b"\x80\x04" + bytes(range(200)),
    "nothing": lambda reply: b"",
    "deep nesting": nested,
    "no report": lambda reply: envelope.reply(replies=[], releases={}),
    "other messages": lambda reply: envelope.reply(replies=["report"], releases=7),
    "another client": lambda reply: forged(reply, client=0),
    "another round": lambda reply: forged(reply, round_idx=7),
    "more examples": lambda reply: forged(reply, num_examples=10**9),
    "no examples": lambda reply: forged(reply, num_examples=0),
    "negative steps": lambda reply: forged(reply, num_steps=-5),
    "a score that is not a number": lambda reply: forged(reply, local_score=math.nan),
    "no model": lambda reply: forged(reply, model=None),
    "a longer model": lambda r: broken_model(r, lambda m: Snapshot(torch.zeros(m.vector.numel() + 1), m.counters)),
    "not a number": lambda r: broken_model(r, lambda m: Snapshot(m.vector * math.nan, m.counters)),
    "too few levels": lambda r: badly_compressed(r, numbers=torch.zeros(5, dtype=torch.uint8)),
    "a scale that is not a number": lambda r: badly_compressed(r, scales=torch.tensor([math.nan])),
    "levels of 40 bits": lambda r: badly_compressed(r, bits=40),
    "blocks of nothing": lambda r: badly_compressed(r, block=0),
    "positions outside": lambda r: badly_compressed(r, positions=torch.arange(53, dtype=torch.int32) + 1),
    "equal positions": lambda r: badly_compressed(r, positions=torch.zeros(53, dtype=torch.int32)),
    "positions of another type": lambda r: badly_compressed(r, positions=torch.arange(53.0)),
    "further buffers": lambda r: badly_compressed(r, rest=torch.zeros(9)),
    "changes of 32 bits": lambda r: badly_compressed(r, numbers=torch.zeros(53), scales=None, changes=True),
    "too few changes": lambda r: badly_compressed(r, numbers=torch.zeros(9).half(), scales=None, changes=True),
    "a change that is infinite": lambda r: badly_compressed(
        r, numbers=torch.full((53,), math.inf).half(), scales=None, changes=True
    ),
    "integers": lambda r: broken_model(r, lambda m: Snapshot(m.vector.long(), m.counters)),
    "extras": lambda reply: forged(reply, extras={"control": torch.full((53,), math.inf)}),
    "extras of another shape": lambda reply: forged(reply, extras={"control": torch.zeros(53, 1)}),
    "an unknown type of tensor": of_another_dtype,
    "other counters": lambda r: broken_model(r, lambda m: Snapshot(m.vector, torch.zeros(3, dtype=torch.int64))),
    "a frozen tensor without a name here": lambda r: broken_model(r, lambda m: moving(m, {"no.such": torch.zeros(2)})),
    "a trained tensor as a frozen one": lambda r: broken_model(r, lambda m: moving(m, {WEIGHT: torch.zeros(5, 6)})),
    "a model of 16 bits": lambda r: broken_model(r, lambda m: Snapshot(m.vector.bfloat16(), m.counters)),
    "a model of another type": lambda r: broken_model(r, lambda m: Snapshot(m.vector.double(), m.counters)),
    "endless steps": lambda reply: forged(reply, num_steps=BIG),
    "more steps than a round has": lambda reply: forged(reply, num_steps=2**62),
    "an endless score": lambda reply: forged(reply, local_score=BIG),
    "endless seconds": lambda reply: forged(reply, seconds=BIG),
    "negative seconds": lambda reply: forged(reply, seconds=-5.0),
    "an endless loss": lambda reply: forged(reply, train_loss=BIG),
    "an endless metric": lambda reply: forged(reply, metrics={"train_loss": BIG}),
    "an endless normalizer": lambda reply: forged(reply, normalizer=BIG),
    "an optimizer with control characters": lambda reply: forged(reply, optimizer="\x1b[2J"),
    "a metric with control characters": lambda reply: forged(reply, metrics={"\x1b[2J": 1.0}),
    "releases that are no mapping": lambda reply: releasing(reply, {"sent": 7, "steps": {}}),
    "endless releases": lambda reply: releasing(reply, {"sent": {"1": BIG}, "steps": {"1": BIG}}),
    "an error with control characters": lambda reply: envelope.reply(error="\x1b[2J" + "x" * 5000),
}


_silent: dict[int, dict[str, torch.Tensor]] = {}


@pytest.fixture
def silent(tmp_path_factory, monkeypatch):
    """The weights by the number of rounds, in none of which south answers, computed once."""
    for rounds in sorted({len(cases) for cases in TOGETHER} - set(_silent)):
        prepare(tmp_path_factory.mktemp("silent"), monkeypatch)
        _silent[rounds] = rounds_with([lambda ask: None] * rounds)
    return _silent


def rounds_with(answers: Sequence[Callable[[Callable[[], bytes]], bytes | None]]) -> dict[str, torch.Tensor]:
    """The weights after rounds without south, whose replies to orders are replaced, in each round by another one."""
    left = iter(answers)
    HOOK["hook"] = lambda name, parts, ask: next(left)(ask) if name == "south" and b'"ClientTask"' in parts["order"] else ask()
    config = configuration(faults={"policy": "skip"})
    config["trainer"]["max_epochs"] = len(answers)
    try:
        with pytest.warns(UserWarning, match=r"without client south") as told:
            found = federate(config)
    finally:
        HOOK.clear()
    assert sum("without client south" in str(one.message) for one in told) == len(answers)
    return found


TOGETHER = [list(HOSTILE)[start : start + 10] for start in range(0, len(HOSTILE), 10)]


@pytest.mark.parametrize("cases", TOGETHER, ids=lambda cases: cases[0])
def test_a_hostile_site_harms_only_itself(cases, silent, tmp_path, monkeypatch):
    """With 'skip', each of the others' rounds counts as if the site had been silent."""
    prepare(tmp_path, monkeypatch)
    answers = [lambda ask, case=case: HOSTILE[case](ask()) for case in cases]
    assert same_bits(rounds_with(answers), silent[len(cases)])


LACKING = {
    "Scaffold": {"extras": {}},
    "Scaffold, too large": {"extras": {"control": torch.full((53,), 1e300, dtype=torch.float64)}},
    "QFedAvg": {"global_score": None},
    "FedLoss": {"local_score": None},
}


@pytest.mark.parametrize("case", LACKING)
def test_a_site_that_does_not_send_what_its_strategy_reads_harms_only_itself(case, tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    give_parts(tmp_path)
    strategy = {"FedLoss": {"class_path": "FedLoss", "init_args": {"loss": "val_loss"}}}.get(case, case.split(",")[0])
    config = configuration(strategy=strategy, **SKIP)
    config["trainer"]["max_epochs"] = 1
    results = []
    for changes in (None, LACKING[case]):
        for name in NAMES:
            start_site(tmp_path, name)
        HOOK["hook"] = lambda name, parts, ask, changes=changes: (
            ask()
            if name != "south" or b'"ClientTask"' not in parts["order"]
            else None
            if changes is None
            else forged(ask(), **changes)
        )
        with pytest.warns(UserWarning, match="Round 0 continues without client south"):
            results.append(federate(config, str(len(results))))
    assert same_bits(*results)


def evaluations(folder: Path) -> tuple[list[list[str]], list[list[str]]]:
    """Return the rows of both tables of the client evaluation."""
    first, second = (folder / f"client_{name}.csv" for name in ("evaluation", "comparison"))
    return [row.split(",") for row in first.read_text().splitlines()], [
        row.split(",") for row in second.read_text().splitlines()[1:]
    ]


def disturb(answer: Callable[[Callable[[], bytes]], bytes | None]) -> list[str]:
    """Replace the replies of south to evaluations; return the list to which each is added."""
    asked: list[str] = []

    def hook(name: str, parts: Any, ask: Callable[[], bytes]) -> bytes | None:
        if name != "south" or b'"EvalOrder"' not in parts["order"]:
            return ask()
        asked.append(name)
        return answer(ask)

    HOOK["hook"] = hook
    return asked


COMPARED = {"every_n_rounds": 1, "metric": "val_loss", "compare_alone": True}


def test_a_lost_evaluation_is_asked_for_again(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    give_parts(tmp_path)
    config = configuration(client_evaluation=COMPARED, faults={"retries": 1})
    whole = federate(config, "whole")
    asked = disturb(lambda ask: None if len(asked) % 2 else ask())
    for name in NAMES:
        start_site(tmp_path, name)
    assert same_bits(whole, federate(config))
    assert evaluations(tmp_path / "real") == evaluations(tmp_path / "whole")
    assert len(asked) == 2 * 4  # three rounds, and each client alone at the end


LOST_EVALUATIONS = {
    "silence": lambda ask: None,
    "noise": lambda ask: b"",
    "an error": lambda ask: envelope.reply(error="OSError"),
    "text": lambda ask: envelope.reply(replies=[EvalReport(1, "0.5")], releases={}),
    "not a number": lambda ask: envelope.reply(replies=[EvalReport(1, math.nan)], releases={}),
}


@pytest.mark.parametrize("case", LOST_EVALUATIONS)
def test_an_evaluation_continues_without_a_site(case, tmp_path, monkeypatch):
    """With 'skip', the others' values are those of a fit in which the site answers; means are over the others."""
    prepare(tmp_path, monkeypatch)
    give_parts(tmp_path)
    config = configuration(client_evaluation=COMPARED, **SKIP)
    config["trainer"] |= {"max_epochs": 1, "logger": {"class_path": "CSVLogger", "init_args": {"save_dir": "log"}}}
    whole = federate(config, "whole")
    disturb(LOST_EVALUATIONS[case])
    for name in NAMES:
        start_site(tmp_path, name)
    if case == "not a number":
        assert same_bits(whole, federate(config))
    else:
        with pytest.warns(UserWarning, match=r"The evaluation continues without site south \(client 1\): "):
            assert same_bits(whole, federate(config))
    (full, compared), (rows, table) = evaluations(tmp_path / "whole"), evaluations(tmp_path / "real")
    assert [rows[k] for k in (0, 1, 3)] == [full[k] for k in (0, 1, 3)]
    assert rows[2] == ["south", "nan"]
    assert [table[k] for k in (0, 2)] == [compared[k] for k in (0, 2)]
    assert table[1][2:] == ["nan"] * 3
    north, west, mean = ([float(x) for x in table[k][1:]] for k in (0, 2, 3))
    assert mean[0] == north[0] + west[0]
    for column in (1, 2):
        assert mean[column] == pytest.approx((north[0] * north[column] + west[0] * west[column]) / mean[0])
    logged = csv.DictReader(sorted(Path("log").rglob("metrics.csv"))[-1].open())
    found = next(row for row in logged if row["federation/client_mean"])
    assert float(found["federation/client_mean"]) == pytest.approx(mean[2], rel=1e-5)
    assert float(found["federation/client_worst"]) == pytest.approx(max(north[2], west[2]), rel=1e-5)


def test_no_evaluation_without_any_site(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    give_parts(tmp_path)
    config = configuration(client_evaluation=EVERY, **SKIP)
    config["trainer"]["max_epochs"] = 1
    HOOK["hook"] = lambda name, parts, ask: None if b'"EvalOrder"' in parts["order"] else ask()
    with pytest.warns(UserWarning, match="The evaluation continues without site west"):
        federate(config)
    assert (tmp_path / "real" / "client_evaluation.csv").read_text().splitlines()[1:] == ["north,nan", "south,nan", "west,nan"]


def test_a_lost_evaluation_ends_the_fit_with_the_ways_to_continue(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    give_parts(tmp_path)
    disturb(lambda ask: None)
    with pytest.raises(SystemExit):
        federate(configuration(client_evaluation=COMPARED))
    said = capsys.readouterr().err
    assert "Site south (client 1): no answer within its deadline. When the site can answer again, resume with" in said


@pytest.mark.parametrize("value", ["0.5", torch.zeros(2), None, True, BIG], ids=lambda value: type(value).__name__)
def test_a_hostile_evaluation_is_its_sites_error(value):
    for reports in ([EvalReport(1, value)], [EvalReport(1, 0.5), EvalReport(1, value)], [value]):
        found = envelope.opened(envelope.reply(replies=reports), ("reply",))
        with pytest.raises(ClientError, match="Site south: its reply is not a report of an evaluation"):
            evaluations_in(found, "Site south", 1, len(reports))


def test_an_evaluation_may_have_no_finite_value():
    found = envelope.opened(envelope.reply(replies=[EvalReport(1, -math.inf), EvalReport(1, 3)]), ("reply",))
    assert evaluations_in(found, "Site south", 1, 2) == [EvalReport(1, -math.inf), EvalReport(1, 3.0)]


IMPOSSIBLE = {
    "endless examples": {"num_examples": BIG},
    "more examples than a site can have": {"num_examples": 2**37},
    "endless counts": {"label_counts": (1, BIG)},
    "negative counts": {"label_counts": (30, -6)},
    "a negative validation part": {"num_validation": -1},
    "a negative test part": {"num_test": -1},
    "a description of another type": {"streams": "yes"},
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_site_that_tells_impossible_counts_is_refused_by_name(case, tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    data = SERVERS["west"]._data
    told = replace(data.info("west", Policy()), **IMPOSSIBLE[case])
    monkeypatch.setattr(data, "info", lambda *_: told)
    with pytest.raises(SystemExit):
        federate(configuration())
    said = capsys.readouterr().err
    assert "Site west" in said
    assert "Check the data.yaml there" in said or "has the wrong type" in said


def test_a_sites_text_cannot_control_the_terminal():
    assert envelope.printable("\x1b[2Jgone\r\n\u202eevil") == "?[2Jgone???evil"
    assert len(envelope.printable("x" * 5000)) == 1000
