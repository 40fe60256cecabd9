"""Asynchronous rounds with sites: updates arrive in any order, and a simulation repeats the run to the bit."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sites_over_bytes
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sites_over_bytes import (
    ABSENT,
    CHOOSE,
    HOOK,
    LINES,
    NAMES,
    SERVERS,
    TOLD,
    configuration,
    federate,
    prepare,
    same_bits,
    simulate,
    start_site,
)

from fl_lightning.messages import ClientInfo

REPLAY = ("--federation.asynchronous.replay", "real/arrivals.jsonl")
TOP_K = {"class_path": "TopK", "init_args": {"share": 0.3}}
KEPT = {"transforms": [TOP_K], "local": {"threads": 1, "engine": "fabric", "optimizer_state": "kept"}}
"""Sites keep an error and an optimizer, so a result that is used once too often or too rarely changes the bits."""
SKIP = {"policy": "skip"}


@pytest.fixture(autouse=True)
def _no_hook():
    LINES.clear()
    yield
    HOOK.clear()
    CHOOSE.clear()


def asynchronous(buffer: int, rounds: int, **federation: Any) -> dict[str, Any]:
    """Return the YAML of a fit whose three sites all train."""
    federation.setdefault("strategy", "FedAsync" if buffer == 1 else "FedBuff")
    config = configuration(asynchronous={"concurrency": 3, "buffer": buffer}, **federation)
    config["trainer"]["max_epochs"] = rounds
    config["model"]["init_args"]["optimizer"]["init_args"]["momentum"] = 0.5
    return config


def arrive(*order: int) -> None:
    """Let the sites answer in an order, by their numbers, and then the one with the smallest number."""
    left = list(order)

    def choose(waiting):
        return left.pop(0) if left else min(waiting)

    CHOOSE["choose"] = choose


def rows(folder: str = "real") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "arrivals.jsonl").read_text().splitlines()][1:]


def arrivals(folder: str = "real") -> list[tuple[int, int, int]]:
    """Return round, client and version of each update."""
    return [(row["round"], row["client"], row["version"]) for row in rows(folder) if not row["lost"]]


def replayed(config: dict[str, Any], *more: str) -> dict[str, Any]:
    return simulate(config, "replayed", *REPLAY, *more)


# ---------------------------------------------------------------- arrivals and their replay


def test_a_site_that_has_delivered_trains_from_the_newest_model(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    arrive(0, 1, 0, 1, 0, 2, 1)
    config = asynchronous(1, 7)
    config["trainer"]["logger"] = {"class_path": "CSVLogger", "init_args": {"save_dir": "log"}}
    real = federate(config)
    assert arrivals() == [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 2), (4, 0, 3), (5, 2, 0), (6, 1, 4)]
    assert [(row["order"], row["site"]) for row in rows()] == list(enumerate(NAMES[k] for k in (0, 1, 0, 1, 0, 2, 1)))
    table = [line.split(",") for line in Path("real/client_rounds.csv").read_text().splitlines()]
    column = table[0].index("staleness")
    assert [int(float(row[column])) for row in table[1:]] == [t - version for t, _, version in arrivals()]
    assert same_bits(real, replayed(config))


def test_a_buffer_is_flushed_when_it_is_full_and_a_site_waits_for_the_next_model(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    arrive(2, 0, 2, 0, 1, 2)
    config = asynchronous(2, 3)
    real = federate(config)
    assert arrivals() == [(0, 2, 0), (0, 0, 0), (1, 2, 1), (1, 0, 1), (2, 1, 0), (2, 2, 2)]
    assert same_bits(real, replayed(config))


def test_as_many_updates_as_sites_are_synchronous_rounds_to_the_bit(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    config = asynchronous(3, 3)
    arrive(2, 0, 1, 1, 2, 0)
    plain = {**config, "federation": {"local": {"threads": 1}}}
    assert same_bits(federate(config), simulate(plain))


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "what sites keep": KEPT,
    "median": {"strategy": "FedMedian"},
    "scored at the server": {"strategy": "AdaFed"},
    "changes": {"strategy": {"class_path": "FedAsync", "init_args": {"mixes": "changes"}}},
}


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_replay_gives_the_bits_of_any_order(case, tmp_path_factory, data):
    """Orders, buffers and lost answers are drawn, each of an answer to a task."""
    buffer = 1 if case == "changes" else data.draw(st.integers(1, 3), "buffer")
    with pytest.MonkeyPatch.context() as monkeypatch:
        prepare(tmp_path_factory.mktemp("sites"), monkeypatch)
        CHOOSE["choose"] = lambda waiting: data.draw(st.sampled_from(sorted(waiting)), "next")
        lost = set(data.draw(st.lists(st.integers(0, 8), max_size=2), "lost"))
        told: list[str] = []

        def lose(name, parts, ask):
            if b'"ClientTask"' not in parts["order"]:
                return ask()
            told.append(name)
            reply = ask() if len(told) % 2 else b""  # with and without its training
            return None if len(told) - 1 in lost else reply or ask()

        HOOK["hook"] = lose
        config = asynchronous(buffer, 5, faults=SKIP, **{"strategy": "FedBuff", **CASES[case]})
        real = federate(config)
        HOOK.clear()
        CHOOSE.clear()
        assert sum(row["lost"] for row in rows()) == sum(number < len(told) for number in lost)
        assert same_bits(real, replayed(config))


# ---------------------------------------------------------------- what dies


def test_a_site_that_dies_costs_its_own_task(tmp_path, monkeypatch):
    """It dies while it trains its second task, starts again later, and goes on from what it kept before that task."""
    prepare(tmp_path, monkeypatch)
    arrive(0, 1, 0, 1, 0, 1, 2, 0, 1, 2)
    asked = Counter[str]()

    def die(name, parts, ask):
        if b'"ClientTask"' not in parts["order"]:
            return ask()
        asked[name] += 1
        if (name, asked[name]) == ("north", 2):
            ask()
            start_site(tmp_path, name)
            return None
        return ask()

    HOOK["hook"] = die
    config = asynchronous(1, 9, faults=SKIP, **KEPT)
    with pytest.warns(UserWarning, match="Round 2 continues without client north: no answer within its deadline"):
        real = federate(config)
    assert [(row["round"], row["client"], row["version"]) for row in rows() if row["lost"]] == [(2, 0, 1)]
    assert len(arrivals()) == 9
    HOOK.clear()
    CHOOSE.clear()
    assert same_bits(real, replayed(config))


def test_a_task_that_is_repeated_starts_from_its_own_model(tmp_path, monkeypatch):
    """The site lost everything, also its frozen part, and the server has made four models since the task began."""
    prepare(tmp_path, monkeypatch)
    arrive(0, 1, 0, 1, 2, 0, 2, 1)
    lost: list[str] = []

    def lose(name, parts, ask):
        if name == "west" and b'"ClientTask"' in parts["order"] and not lost:
            lost.append(name)
            start_site(tmp_path, name)
            return None
        return ask()

    HOOK["hook"] = lose
    config = asynchronous(1, 7, faults={"retries": 1}, **KEPT)
    config["trainer"]["callbacks"] = [{"class_path": "TransferLearning", "init_args": {"parts": ["network.layers.1"]}}]
    real = federate(config)
    assert lost == ["west"]
    assert (5, 2, 0) in arrivals()
    CHOOSE.clear()
    assert same_bits(real, replayed(config))


def test_the_policy_fatal_ends_the_run_with_its_error(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    HOOK["hook"] = lambda name, parts, ask: None if name == "south" and b'"ClientTask"' in parts["order"] else ask()
    arrive(0, 1)
    with pytest.raises(SystemExit):
        federate(asynchronous(1, 4))
    assert "Site south (client 1): no answer within its deadline. When the site can answer again" in capsys.readouterr().err


def test_a_site_that_is_away_gets_no_task_until_it_is_back(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    ABSENT.add("west")
    TOLD["west"] = ClientInfo("west", 48)

    def choose(waiting):
        if len(rows()) == 3:
            ABSENT.clear()
        return max(waiting)

    CHOOSE["choose"] = choose
    with pytest.warns(UserWarning, match="The fit starts without site west"):
        federate(asynchronous(1, 6, faults=SKIP), "real", "--federation.pool.min_sites", "2")
    assert [client for _, client, _ in arrivals()][:4] == [1, 1, 1, 1]
    assert 2 in [client for _, client, _ in arrivals()][4:]
    assert not any(row["lost"] for row in rows())


def test_nobody_can_fill_a_buffer(tmp_path, monkeypatch, capsys):
    """It is flushed with what has arrived, and the run ends when nothing can arrive."""
    prepare(tmp_path, monkeypatch)
    HOOK["hook"] = lambda name, parts, ask: None if name != "west" and b'"ClientTask"' in parts["order"] else ask()
    config = asynchronous(3, 2, faults=SKIP)
    with pytest.warns(UserWarning, match="continues without"):
        federate(config)
    assert arrivals() == [(0, 2, 0), (1, 2, 1)]
    HOOK["hook"] = lambda name, parts, ask: None if b'"ClientTask"' in parts["order"] else ask()
    with pytest.raises(SystemExit):
        federate(config, "none")
    assert "Round 0: 0 of 3 updates are valid, but the round needs 1" in capsys.readouterr().err
    HOOK.clear()
    ABSENT.update(NAMES)
    with pytest.raises(SystemExit):
        federate(config, "none", "--federation.pool.min_sites", "1")


# ---------------------------------------------------------------- the server starts again

ORDER = (0, 1, 0, 1, 0, 1, 2, 0, 1, 2, 0, 1)


def crash(config: dict[str, Any], round_idx: int, after: bool) -> dict[str, Any]:
    dies = {"class_path": "sites_over_bytes.Crash", "init_args": {"round_idx": round_idx, "after": after}}
    return {**config, "trainer": {**config["trainer"], "callbacks": [dies]}}


@pytest.mark.parametrize("sites_restart", [False, True])
@pytest.mark.parametrize("done", [False, True], ids=["still to do", "done meanwhile"])
@pytest.mark.parametrize("after", [False, True], ids=["before the checkpoint", "after the checkpoint"])
def test_tasks_under_way_outlive_the_server(after, done, sites_restart, tmp_path, monkeypatch):
    """The resumed run has the bits of one that nothing happened to, and no site trains a task twice that it has done."""
    prepare(tmp_path, monkeypatch)
    config = asynchronous(1, 9, **KEPT)
    arrive(*ORDER)
    whole, expected = federate(config, "whole"), arrivals("whole")
    CHOOSE.clear()
    for name in NAMES:
        start_site(tmp_path, name)
    arrive(*ORDER)
    waiting: dict[str, Any] = {}
    catch_orders(monkeypatch, waiting)
    with pytest.raises(SystemExit, match="killed"):
        federate(crash(config, 3, after))
    LINES.clear()
    known = [name for name in waiting if name == "west"]  # its task is older than the checkpoint
    assert known == ["west"]
    if done:
        SERVERS["west"].answer(waiting["west"])
    for name in NAMES if sites_restart else ():
        start_site(tmp_path, name)
    arrive(*ORDER[4 if after else 3 :])
    assert same_bits(whole, federate(config, "real", "--ckpt_path", "last"))
    assert arrivals() == expected
    assert LINES.count("west: Answered a repeated order from the store.") == done
    assert LINES.count("west: Round 0: trained.") == 1
    CHOOSE.clear()
    assert same_bits(whole, replayed(config))


def catch_orders(monkeypatch, waiting):
    """Note the requests under way, by site."""
    send = sites_over_bytes.BytesTransport.send

    def sent(self, client, parts, round_idx, seconds):
        waiting[NAMES[client]] = dict(parts)
        send(self, client, parts, round_idx, seconds)

    def answered(name, parts, ask):
        waiting.pop(name, None)
        return ask()

    monkeypatch.setattr(sites_over_bytes.BytesTransport, "send", sent)
    HOOK["hook"] = answered


def test_a_result_of_a_site_that_is_away_when_the_server_resumes_is_undone_there(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    config, waiting = asynchronous(1, 9, faults=SKIP, **KEPT), dict[str, Any]()
    arrive(*ORDER)
    catch_orders(monkeypatch, waiting)
    with pytest.raises(SystemExit, match="killed"):
        federate(crash(config, 3, True))
    SERVERS["west"].answer(waiting["west"])
    ABSENT.add("west")

    def choose(asked):
        if len(rows()) == 6:
            ABSENT.clear()
        return max(asked)

    CHOOSE["choose"] = choose
    with pytest.warns(UserWarning, match="Round 4 continues without client west: it is offline"):
        real = federate(config, "real", "--ckpt_path", "last", "--federation.pool.min_sites", "2")
    assert [(row["round"], row["client"], row["version"]) for row in rows() if row["lost"]] == [(4, 2, 0)]
    assert 2 in [client for _, client, _ in arrivals()]
    CHOOSE.clear()
    assert same_bits(real, replayed(config))


@pytest.mark.parametrize("every", [2, 3])
def test_sites_go_back_to_the_state_before_a_task_that_is_repeated(every, tmp_path, monkeypatch):
    """The last checkpoint is rounds old, and sites have done tasks that it does not know, or had under way."""
    prepare(tmp_path, monkeypatch)
    config = asynchronous(1, 9, **KEPT)
    saves = ("--last_checkpoint.every_n_rounds", str(every))
    arrive(*ORDER)
    whole = federate(config, "whole", *saves)
    for name in NAMES:
        start_site(tmp_path, name)
    arrive(*ORDER)
    with pytest.raises(SystemExit, match="killed"):
        federate(crash(config, 7, False), "real", *saves)
    first = torch.load("real/checkpoints/last.ckpt", weights_only=True)["epoch"] + 1
    assert first == {2: 6, 3: 6}[every]
    arrive(*ORDER[first:])
    assert same_bits(whole, federate(config, "real", "--ckpt_path", "last", *saves))
    dropped = [line for line in LINES if "dropped" in line]
    assert dropped
    assert all(line.endswith("dropped: the server has started again and does not know it.") for line in dropped)


def test_a_run_is_extended_with_its_tasks_under_way(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    arrive(*ORDER)
    whole = federate(asynchronous(1, 8, **KEPT), "whole")
    for name in NAMES:
        start_site(tmp_path, name)
    arrive(*ORDER)
    federate(asynchronous(1, 4, **KEPT))
    arrive(*ORDER[4:])
    config = asynchronous(1, 8, **KEPT)
    assert same_bits(whole, federate(config, "real", "--ckpt_path", "last"))
    assert arrivals() == arrivals("whole")
    saved = torch.load("real/checkpoints/last.ckpt", weights_only=True)["callbacks"]["FederatedOrchestrator"]
    state = saved["options"]["asynchronous"]
    assert set(state["asked"]) == {client for _, client, _, _ in state["queue"]["flights"]}
    assert set(state["starts"]) == {version for _, _, version, _ in state["queue"]["flights"]}
    assert len(state["starts"]) <= 3
