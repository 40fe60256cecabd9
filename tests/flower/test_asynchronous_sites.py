"""Asynchronous rounds with sites: updates arrive in any order, and a simulation repeats the run to the bit."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sites_over_bytes as net
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_lightning.messages import ClientInfo
from fl_lightning.options.asynchronous.arrivals import Recording

KEPT = {"transforms": [net.of("TopK", share=0.3)], "local": {"threads": 1, "engine": "fabric", "optimizer_state": "kept"}}
"""Sites keep an error and an optimizer, so a result that is used once too often or too rarely changes the bits."""
SKIP = {"policy": "skip"}


def asynchronous(buffer: int, rounds: int, **federation: Any) -> dict[str, Any]:
    """Return the YAML of a fit whose three sites all train."""
    federation.setdefault("strategy", "FedAsync" if buffer == 1 else "FedBuff")
    config = net.configuration(rounds, asynchronous={"concurrency": 3, "buffer": buffer}, **federation)
    config["model"]["init_args"]["optimizer"]["init_args"]["momentum"] = 0.5
    return config


def arrive(*order: int) -> None:
    """Let the sites answer in an order, by their numbers, and then the one with the smallest number."""
    left = list(order)
    net.CHOOSE["choose"] = lambda waiting: left.pop(0) if left else min(waiting)


def rows(folder: str = "real") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "arrivals.jsonl").read_text().splitlines()][1:]


def arrivals(folder: str = "real", lost: bool = False) -> list[tuple[int, int, int]]:
    """Return round, client and version of each update, or of each that was lost."""
    return [(row["round"], row["client"], row["version"]) for row in rows(folder) if row["lost"] == lost]


def replayed(config: dict[str, Any]) -> dict[str, Any]:
    net.HOOK.clear()
    net.CHOOSE.clear()
    return net.simulate(config, "replayed", "--federation.asynchronous.replay", "real/arrivals.jsonl")


# ---------------------------------------------------------------- arrivals and their replay


@pytest.mark.slow
def test_a_site_that_has_delivered_trains_from_the_newest_model():
    net.prepare()
    order = (0, 1, 0, 1, 0, 2, 1)
    arrive(*order)
    config = asynchronous(1, 7)
    config["trainer"]["logger"] = {"class_path": "CSVLogger", "init_args": {"save_dir": "log"}}
    real = net.federate(config)
    assert arrivals() == [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 2), (4, 0, 3), (5, 2, 0), (6, 1, 4)]
    assert [(row["order"], row["site"]) for row in rows()] == list(enumerate(net.NAMES[k] for k in order))
    table = [line.split(",") for line in Path("real/client_rounds.csv").read_text().splitlines()]
    column = table[0].index("staleness")
    assert [int(float(row[column])) for row in table[1:]] == [t - version for t, _, version in arrivals()]
    assert net.same_bits(real, replayed(config))


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "what sites keep": KEPT,
    "median": {"strategy": "FedMedian"},
    "scored at the server": {"strategy": "AdaFed"},
    "changes": {"strategy": {"class_path": "FedAsync", "init_args": {"mixes": "changes"}}},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=3, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_replay_gives_the_bits_of_any_order(case, tmp_path_factory, data):
    """Orders, buffers and sites that die are drawn."""
    buffer = 1 if case == "changes" else data.draw(st.integers(1, 3), "buffer")
    net.prepare(tmp_path_factory.mktemp("sites"))
    net.CHOOSE["choose"] = lambda waiting: data.draw(st.sampled_from(sorted(waiting)), "next")
    lost = set(data.draw(st.lists(st.integers(0, 8), max_size=2), "lost"))
    told: list[str] = []

    def lose(name, parts, ask):
        if not net.is_task(parts):
            return ask()
        told.append(name)
        reply = ask() if len(told) % 2 else b""  # it dies before or after its training
        if len(told) - 1 not in lost:
            return reply or ask()
        net.start_site(Path(), name)  # it goes on from what it kept before this task
        return None

    net.HOOK["hook"] = lose
    config = asynchronous(buffer, 5, faults=SKIP, **{"strategy": "FedBuff", **CASES[case]})
    real = net.federate(config)
    assert len(arrivals(lost=True)) == sum(number < len(told) for number in lost)
    assert net.same_bits(real, replayed(config))


def test_a_line_that_a_kill_cut_off_is_left_out():
    line = {"round": 0, "order": 0, "client": 0, "version": 0, "lost": False, "of": 1}
    text = "\n".join([json.dumps({"clients": ["a", "b"], "seed": 0}), json.dumps(line), json.dumps(line)[:-9]])
    Path("arrivals.jsonl").write_text(text)
    assert Recording.read(Path("arrivals.jsonl"), 2, 0, 1).rounds == 1


def test_a_replay_without_one_of_its_lines_is_refused():
    """It ran, with other bits. Without the last line of a round that is not the last, too."""
    net.prepare()
    config = asynchronous(2, 5)
    net.federate(config)
    lines = Path("real/arrivals.jsonl").read_text().splitlines(keepends=True)
    for left_out in range(1, len(lines)):
        Path("real/arrivals.jsonl").write_text("".join(lines[:left_out] + lines[left_out + 1 :]))
        said = net.refused(config, "replayed", "--federation.asynchronous.replay", "real/arrivals.jsonl", fit=net.simulate)
        assert "which lacks the end of task" in said or "which has 4 rounds, but 'trainer.max_epochs' is 5" in said


# ---------------------------------------------------------------- what dies


@pytest.mark.slow
def test_a_task_that_is_repeated_starts_from_its_own_model():
    """The site lost everything, also its frozen part, and the server has made four models since the task began."""

    def lose(ask):
        if len(asked) > 1:
            return ask()
        net.start_site(Path(), "west")
        return None

    net.prepare()
    arrive(0, 1, 0, 1, 2, 0, 2, 1)
    asked = net.disturb("west", lose)
    config = asynchronous(1, 7, faults={"retries": 1}, **KEPT)
    config["trainer"]["callbacks"] = [{"class_path": "TransferLearning", "init_args": {"parts": ["network.layers.1"]}}]
    real = net.federate(config)
    assert len(asked) > 1
    assert (5, 2, 0) in arrivals()
    assert net.same_bits(real, replayed(config))


@pytest.mark.slow
def test_a_site_that_is_away_gets_no_task_until_it_is_back():
    net.prepare()
    net.ABSENT.add("west")
    net.TOLD["west"] = ClientInfo("west", 48)
    back_after(3)
    with pytest.warns(UserWarning, match="The fit starts without site west"):
        net.federate(asynchronous(1, 6, faults=SKIP), "real", "--federation.pool.min_sites", "2")
    assert [client for _, client, _ in arrivals()][:4] == [1, 1, 1, 1]
    assert 2 in [client for _, client, _ in arrivals()][4:]
    assert not arrivals(lost=True)


def back_after(count: int) -> None:
    """Let the site with the largest number answer, and absent ones come back after so many arrivals."""

    def choose(waiting):
        if len(rows()) == count:
            net.ABSENT.clear()
        return max(waiting)

    net.CHOOSE["choose"] = choose


@pytest.mark.slow
def test_nobody_can_fill_a_buffer():
    """It is flushed with what has arrived, and the run ends when nothing can arrive."""
    net.prepare()
    net.HOOK["hook"] = lambda name, parts, ask: None if name != "west" and net.is_task(parts) else ask()
    config = asynchronous(3, 2, faults=SKIP)
    with pytest.warns(UserWarning, match="continues without"):
        net.federate(config)
    assert arrivals() == [(0, 2, 0), (1, 2, 1)]
    net.HOOK["hook"] = lambda name, parts, ask: None if net.is_task(parts) else ask()
    assert "Round 0: 0 of 3 updates are valid, but the round needs 1" in net.refused(config, "none")
    net.HOOK.clear()
    net.ABSENT.update(net.NAMES)
    net.refused(config, "none", "--federation.pool.min_sites", "1")


# ---------------------------------------------------------------- the server starts again

ORDER = (0, 1, 0, 1, 0, 1, 2, 0, 1, 2, 0, 1)
LAST = ("real", "--ckpt_path", "last")


def crash(config: dict[str, Any], round_idx: int, after: bool, *more: str) -> None:
    """Fit until the server dies."""
    dies = net.of("sites_over_bytes.Crash", round_idx=round_idx, after=after)
    with pytest.raises(SystemExit, match="killed"):
        net.federate({**config, "trainer": {**config["trainer"], "callbacks": [dies]}}, "real", *more)


def whole(config: dict[str, Any], *more: str) -> dict[str, Any]:
    """Return the weights of a run to which nothing happens, and start the sites for another one in the same order."""
    arrive(*ORDER)
    found = net.federate(config, "whole", *more)
    net.restart()
    arrive(*ORDER)
    return found


def crash_with_a_task_under_way(config: dict[str, Any], after: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the server die while the task of west is older than the checkpoint; return the order of that task."""
    send, orders = net.BytesTransport.send, dict[int, Any]()

    def sent(self, client, parts, seconds):
        orders[client] = dict(parts)
        send(self, client, parts, seconds)

    monkeypatch.setattr(net.BytesTransport, "send", sent)
    crash(config, 3, after)
    assert 2 not in [client for _, client, _ in arrivals()]
    return orders[2]


DEATHS = [(after, done, restarts) for after in (False, True) for done in (False, True) for restarts in (False, True)]


@pytest.mark.slow
@pytest.mark.parametrize(("after", "done", "sites_restart"), DEATHS)
def test_tasks_under_way_outlive_the_server(after, done, sites_restart, monkeypatch):
    """The resumed run has the bits of one that nothing happened to, and no site trains a task twice that it has done.

    The server dies before or after a checkpoint; the task under way is done meanwhile or not.
    """
    net.prepare()
    config = asynchronous(1, 9, **KEPT)
    expected = whole(config)
    order = crash_with_a_task_under_way(config, after, monkeypatch)
    net.LINES.clear()
    if done:
        net.SERVERS["west"].answer(order)
    if sites_restart:
        net.restart()
    arrive(*ORDER[4 if after else 3 :])
    assert net.same_bits(expected, net.federate(config, *LAST))
    assert arrivals() == arrivals("whole")
    assert net.LINES.count("west: Answered a repeated order from the store.") == done
    assert net.LINES.count("west: Round 0: trained.") == 1
    assert net.same_bits(expected, replayed(config))


@pytest.mark.slow
def test_a_result_of_a_site_that_is_away_when_the_server_resumes_is_undone_there(monkeypatch):
    net.prepare()
    config = asynchronous(1, 9, faults=SKIP, **KEPT)
    arrive(*ORDER)
    net.SERVERS["west"].answer(crash_with_a_task_under_way(config, True, monkeypatch))
    net.ABSENT.add("west")
    back_after(6)
    with pytest.warns(UserWarning, match="Round 4 continues without client west: it is offline"):
        real = net.federate(config, *LAST, "--federation.pool.min_sites", "2")
    assert arrivals(lost=True) == [(4, 2, 0)]
    assert 2 in [client for _, client, _ in arrivals()]
    assert net.same_bits(real, replayed(config))


@pytest.mark.slow
@pytest.mark.parametrize("every", [2, 3])
def test_sites_go_back_to_the_state_before_a_task_that_is_repeated(every):
    """The last checkpoint is rounds old, and sites have done tasks that it does not know, or had under way."""
    net.prepare()
    config, saves = asynchronous(1, 9, **KEPT), ("--last_checkpoint.every_n_rounds", str(every))
    expected = whole(config, *saves)
    crash(config, 7, False, *saves)
    assert torch.load("real/checkpoints/last.ckpt", weights_only=True)["epoch"] + 1 == 6
    arrive(*ORDER[6:])
    assert net.same_bits(expected, net.federate(config, *LAST, *saves))
    dropped = [line for line in net.LINES if "dropped" in line]
    assert dropped
    assert all(line.endswith("dropped: the server has started again and does not know it.") for line in dropped)


@pytest.mark.slow
def test_a_run_is_extended_with_its_tasks_under_way():
    net.prepare()
    config = asynchronous(1, 8, **KEPT)
    expected = whole(config)
    net.federate(asynchronous(1, 4, **KEPT))
    arrive(*ORDER[4:])
    assert net.same_bits(expected, net.federate(config, *LAST))
    assert arrivals() == arrivals("whole")
    saved = torch.load("real/checkpoints/last.ckpt", weights_only=True)["callbacks"]["FederatedOrchestrator"]
    state = saved["options"]["asynchronous"]
    assert set(state["asked"]) == {client for _, client, _, _ in state["queue"]["flights"]}
    assert set(state["starts"]) == {version for _, _, version, _ in state["queue"]["flights"]}
    assert len(state["starts"]) <= 3


# ---------------------------------------------------------------- limits


@pytest.mark.slow
def test_the_trainings_of_a_site_are_limited_and_not_the_models_of_the_server():
    """The server plans nine models, the sites allow four trainings each; the fifth of north is refused and costs its task."""
    net.prepare(machine={"trainings": 4})
    arrive(0, 1, 0, 2, 0, 1, 0, 2, 0, 1)
    with pytest.warns(UserWarning, match="without client north: (RefusedError|.*'policy.machine.trainings' is 4)"):
        net.federate(asynchronous(1, 9, faults=SKIP))
    trained = Counter(client for _, client, _ in arrivals())
    assert trained[0] == max(trained.values()) == 4


def test_privacy_is_charged_for_each_task_before_it_trains_also_if_it_outlasts_rounds():
    """The ledger never has fewer messages of a site than the site was asked for; at the end, those that came are counted."""
    pytest.importorskip("dp_accounting")
    net.prepare()
    private = {"class_path": "ClientPrivacy", "init_args": {"max_norm": 0.5, "noise_multiplier": 1.0, "noise": "local"}}
    asked = Counter[str]()

    def charged() -> Counter[str]:
        found = Counter[str]()
        for line in Path("real/privacy_ledger.jsonl").read_text().splitlines():
            found.update(json.loads(line).get("sent", {}))
        return found

    def count(name, parts, ask):
        if net.is_task(parts):
            asked[str(net.NAMES.index(name))] += 1
            assert charged() >= asked
            assert charged()["2"] == 1  # under way from the start, and never refunded
        return ask()

    net.HOOK["hook"] = count
    arrive(0, 1, 0, 1, 0, 1)
    net.federate(asynchronous(1, 6, transforms=[private]))
    assert asked == {"0": 3, "1": 3}
    assert charged() == {"0": 4, "1": 3, "2": 1}  # those that go on at the end are charged as well
