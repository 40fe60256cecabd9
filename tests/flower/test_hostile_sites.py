"""Sites that send what they should not: each harms only itself, and the server says which one it was."""

import csv
import json
import math
import shutil
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sites_over_bytes as net
import torch

from fl_lightning.errors import ClientError
from fl_lightning.flower import envelope
from fl_lightning.flower.server.replies import evaluations_in
from fl_lightning.messages import EvalReport
from fl_lightning.types import Compressed, Snapshot
from fl_lightning.wire import FORMAT

SKIP = {"faults": {"policy": "skip"}}
COMPARED = {"every_n_rounds": 1, "metric": "val_loss", "compare_alone": True}
Ask = Callable[[], bytes]


def model_of(reply: bytes) -> Any:
    return envelope.opened(reply, ("reply",))["replies"][0].model


def forged(reply: bytes, **changes: Any) -> bytes:
    """Return a site's reply with another update in it."""
    (update,) = envelope.opened(reply, ("reply",))["replies"]
    return envelope.reply(replies=[replace(update, **changes)], releases={})


def sending(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda reply: forged(reply, **changes)


def modelled(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    return lambda reply: forged(reply, model=change(model_of(reply)))


def compressed(**changes: Any) -> Callable[[bytes], bytes]:
    """Return a change of a reply: a compressed model that is wrong."""

    def change(reply: bytes) -> bytes:
        model = model_of(reply)
        size = model.vector.numel()
        good = Compressed(torch.zeros(size, dtype=torch.uint8), torch.zeros(0), model.counters, None, torch.ones(1), 8, size)
        return forged(reply, model=None, compressed=replace(good, **changes))

    return change


def half_changes(numbers: torch.Tensor) -> Callable[[bytes], bytes]:
    return compressed(numbers=numbers, scales=None, changes=True)


def releasing(releases: Any) -> Callable[[bytes], bytes]:
    return lambda reply: envelope.reply(replies=envelope.opened(reply, ("reply",))["replies"], releases=releases)


def nested(_: bytes) -> bytes:
    text = b'{"format": 1, "content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    return len(text).to_bytes(8, "little") + text + (2).to_bytes(8, "little") + b"{}"


def of_another_dtype(_: bytes) -> bytes:
    """Name a type of 8 bits that messages do not have."""
    text = json.dumps({"format": FORMAT, "tensors": [["float8_e4m3fn", 8]], "content": {"tensor": 0}}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(8)


def moving(**moved: torch.Tensor) -> Callable[[bytes], bytes]:
    names = {name.replace("__", "."): tensor for name, tensor in moved.items()}
    return modelled(lambda m: Snapshot(m.vector, m.counters, names))


BIG = 10**400
"""A whole number that no float holds."""
SMALL = torch.zeros(5, dtype=torch.uint8)
HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "noise": lambda reply: b"\x80\x04" + bytes(range(200)),
    "nothing": lambda reply: b"",
    "deep nesting": nested,
    "no report": lambda reply: envelope.reply(replies=[], releases={}),
    "other messages": lambda reply: envelope.reply(replies=["report"], releases=7),
    "another client": sending(client=0),
    "another round": sending(round_idx=7),
    "more examples": sending(num_examples=10**9),
    "no examples": sending(num_examples=0),
    "negative steps": sending(num_steps=-5),
    "a score that is not a number": sending(local_score=math.nan),
    "no model": sending(model=None),
    "a longer model": modelled(lambda m: Snapshot(torch.zeros(m.vector.numel() + 1), m.counters)),
    "not a number": modelled(lambda m: Snapshot(m.vector * math.nan, m.counters)),
    "too few levels": compressed(numbers=SMALL),
    "a scale that is not a number": compressed(scales=torch.tensor([math.nan])),
    "levels of 40 bits": compressed(bits=40),
    "blocks of nothing": compressed(block=0),
    "positions outside": compressed(positions=torch.arange(53, dtype=torch.int32) + 1),
    "equal positions": compressed(positions=torch.zeros(53, dtype=torch.int32)),
    "positions of another type": compressed(positions=torch.arange(53.0)),
    "further buffers": compressed(rest=torch.zeros(9)),
    "changes of 32 bits": half_changes(torch.zeros(53)),
    "too few changes": half_changes(torch.zeros(9).half()),
    "a change that is infinite": half_changes(torch.full((53,), math.inf).half()),
    "integers": modelled(lambda m: Snapshot(m.vector.long(), m.counters)),
    "extras": sending(extras={"control": torch.full((53,), math.inf)}),
    "extras of another shape": sending(extras={"control": torch.zeros(53, 1)}),
    "an unknown type of tensor": of_another_dtype,
    "other counters": modelled(lambda m: Snapshot(m.vector, torch.zeros(3, dtype=torch.int64))),
    "a frozen tensor without a name here": moving(no__such=torch.zeros(2)),
    "a trained tensor as a frozen one": moving(network__layers__1__weight=torch.zeros(5, 6)),
    "a model of 16 bits": modelled(lambda m: Snapshot(m.vector.bfloat16(), m.counters)),
    "a model of another type": modelled(lambda m: Snapshot(m.vector.double(), m.counters)),
    "endless steps": sending(num_steps=BIG),
    "more steps than a round has": sending(num_steps=2**62),
    "an endless score": sending(local_score=BIG),
    "negative seconds": sending(seconds=-5.0),
    "an endless metric": sending(metrics={"train_loss": BIG}),
    "an optimizer with control characters": sending(optimizer="\x1b[2J"),
    "a metric with control characters": sending(metrics={"\x1b[2J": 1.0}),
    "releases that are no mapping": releasing({"sent": 7, "steps": {}}),
    "endless releases": releasing({"sent": {"1": BIG}, "steps": {"1": BIG}}),
    "an error with control characters": lambda reply: envelope.reply(error="\x1b[2J" + "x" * 5000),
}


def rounds_with(folder: str, answers: Iterable[Callable[[Ask], bytes | None]]) -> dict[str, torch.Tensor]:
    """Return the weights after rounds without south, whose replies to orders are replaced, in each by another one."""
    left = list(answers)
    rounds = len(left)
    net.disturb("south", lambda ask: left.pop(0)(ask))
    with pytest.warns(UserWarning, match=r"without client south") as told:
        found = net.federate(net.configuration(rounds, **SKIP), folder)
    assert sum("without client south" in str(one.message) for one in told) == rounds
    return found


@pytest.mark.slow
def test_a_hostile_site_harms_only_itself():
    """With 'skip', each of the others' rounds counts as if the site had been silent."""
    net.prepare()
    silent = rounds_with("silent", [lambda ask: None] * len(HOSTILE))
    net.restart()
    assert net.same_bits(rounds_with("hostile", [lambda ask, lie=lie: lie(ask()) for lie in HOSTILE.values()]), silent)


LACKING: dict[str, dict[str, Any]] = {
    "Scaffold": {"extras": {}},
    "Scaffold, too large": {"extras": {"control": torch.full((53,), 1e300, dtype=torch.float64)}},
    "QFedAvg": {"global_score": None},
    "FedLoss": {"local_score": None},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LACKING)
def test_a_site_that_does_not_send_what_its_strategy_reads_harms_only_itself(case):
    net.prepare()
    net.give_parts()
    config, results = net.configuration(1, strategy=case.split(",")[0], **SKIP), []
    for answer in (lambda ask: None, lambda ask: forged(ask(), **LACKING[case])):
        net.restart()
        net.disturb("south", answer)
        with pytest.warns(UserWarning, match="Round 0 continues without client south"):
            results.append(net.federate(config, str(len(results))))
    assert net.same_bits(*results)


# ---------------------------------------------------------------- evaluations


def evaluations(folder: str) -> tuple[list[list[str]], list[list[str]]]:
    """Return the rows of both tables of the client evaluation."""
    first, second = (Path(folder, f"client_{name}.csv").read_text().splitlines() for name in ("evaluation", "comparison"))
    return [row.split(",") for row in first], [row.split(",") for row in second[1:]]


@pytest.mark.slow
def test_a_lost_evaluation_is_asked_for_again():
    net.prepare()
    net.give_parts()
    config = net.configuration(client_evaluation=COMPARED, faults={"retries": 1})
    whole = net.federate(config, "whole")
    net.restart()
    asked = net.disturb("south", lambda ask: None if len(asked) % 2 else ask(), "EvalOrder")
    assert net.same_bits(whole, net.federate(config))
    assert evaluations("real") == evaluations("whole")
    assert len(asked) == 2 * 4  # three rounds, and each client alone at the end


LOST_EVALUATIONS: dict[str, Callable[[Ask], bytes | None]] = {
    "silence": lambda ask: None,
    "noise": lambda ask: b"",
    "an error": lambda ask: envelope.reply(error="OSError"),
    "text": lambda ask: envelope.reply(replies=[EvalReport(1, "0.5")], releases={}),  # type: ignore[arg-type]
    "not a number": lambda ask: envelope.reply(replies=[EvalReport(1, math.nan)], releases={}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", LOST_EVALUATIONS)
def test_an_evaluation_continues_without_a_site(case):
    """With 'skip', the others' values are those of a fit in which the site answers; means are over the others."""
    net.prepare()
    net.give_parts()
    config = net.configuration(1, client_evaluation=COMPARED, **SKIP)
    config["trainer"]["logger"] = {"class_path": "CSVLogger", "init_args": {"save_dir": "log"}}
    whole = net.federate(config, "whole")
    net.restart()
    net.disturb("south", LOST_EVALUATIONS[case], "EvalOrder")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert net.same_bits(whole, net.federate(config))
    lost = any("The evaluation continues without site south (client 1): " in str(one.message) for one in told)
    assert lost == (case != "not a number")
    (full, compared), (rows, table) = evaluations("whole"), evaluations("real")
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


@pytest.mark.slow
def test_no_evaluation_without_any_site_and_an_error_with_the_policy_fatal():
    net.prepare()
    net.give_parts()
    net.HOOK["hook"] = lambda name, parts, ask: None if b'"EvalOrder"' in parts["order"] else ask()
    evaluation = {"every_n_rounds": 1, "metric": "val_accuracy"}
    with pytest.warns(UserWarning, match="The evaluation continues without site west"):
        net.federate(net.configuration(1, client_evaluation=evaluation, **SKIP))
    assert Path("real/client_evaluation.csv").read_text().splitlines()[1:] == ["north,nan", "south,nan", "west,nan"]
    shutil.rmtree("real")
    net.disturb("south", kind="EvalOrder")
    said = net.refused(net.configuration(1, client_evaluation=evaluation))
    assert "Site south (client 1): no answer within its deadline. When the site can answer again, resume with" in said


NO_REPORT = "Site south: its reply does not hold the expected EvalReport"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *(({"value": value}, NO_REPORT) for value in ("0.5", torch.zeros(2), None, True, BIG)),
        ({"interval": (0.1,)}, NO_REPORT),
        ({"points": "x"}, NO_REPORT),
        ({"n": -1}, "an impossible number of examples"),
        ({"n": 2**40}, "an impossible number of examples"),
        ({"reason": "\x1b[2J"}, "control characters"),
        ({"pooled": "\x1b[2J"}, "control characters"),
        ({"sums": {"\x1b": torch.zeros(1).double()}}, "control characters"),
        ({"sums": {"tp": torch.zeros(1).half()}}, "tensors other than float64"),
        ({"points": (torch.zeros(10**6 + 1).double(),)}, "more than 1000000 numbers"),
    ],
)
def test_a_hostile_evaluation_is_its_sites_error(changes, said):
    """It may have no finite value."""
    good = EvalReport(1, 0.5)
    wrong = replace(good, **changes)
    for reports, words in (([wrong], said), ([good, wrong], said), ([changes], NO_REPORT)):
        found = envelope.opened(envelope.reply(replies=reports), ("reply",))
        with pytest.raises(ClientError, match=words):
            evaluations_in(found, "Site south", 1, len(reports))
    found = envelope.opened(envelope.reply(replies=[EvalReport(1, -math.inf), EvalReport(1, 3)]), ("reply",))
    assert evaluations_in(found, "Site south", 1, 2) == [EvalReport(1, -math.inf), EvalReport(1, 3.0)]


def test_a_sites_text_cannot_control_the_terminal():
    assert envelope.printable("\x1b[2Jgone\r\n\u202eevil") == "?[2Jgone???evil"
    assert len(envelope.printable("x" * 5000)) == 1000
