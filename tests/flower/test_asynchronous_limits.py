"""What asynchronous rounds with sites refuse, what a replay refuses, and what they count: trainings and privacy."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from sites_over_bytes import CHOOSE, HOOK, federate, give_parts, prepare, simulate
from test_asynchronous_sites import arrivals, arrive, asynchronous

from fl_lightning import ConfigurationError
from fl_lightning.options.asynchronous.arrivals import ArrivalFile, Recording


@pytest.fixture(autouse=True)
def _no_hook():
    yield
    HOOK.clear()
    CHOOSE.clear()


REFUSED = {
    "SCAFFOLD": ({"strategy": "Scaffold"}, (), "Scaffold needs each client to train from the current global model"),
    "FedNova": ({"strategy": "FedNova"}, (), "FedNova needs each client to train from the current global model"),
    "masks": (
        {"secure_aggregation": {"threshold": 1.0}},
        (),
        "'federation.secure_aggregation' lets the clients of a round agree on masks, but with 'federation.asynchronous'",
    ),
    "a clock": ({"clock": {"ticks": 10}}, (), "This does not work there: federation.clock."),
    "evaluation": (
        {"client_evaluation": {"every_n_rounds": 1, "metric": "val_accuracy"}},
        (),
        "'federation.client_evaluation' evaluates models at the clients between rounds, but with 'federation.asynchronous'",
    ),
    "a replay": ({}, ("--federation.asynchronous.replay", "a.jsonl"), "does not work there: federation.asynchronous.replay."),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_work_is_refused_by_name(case, tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    if case == "evaluation":
        give_parts(tmp_path)
    federation, arguments, message = REFUSED[case]
    with pytest.raises(SystemExit):
        federate(asynchronous(1, 3, **{"strategy": "FedAvg", **federation}), "real", *arguments)
    assert message in capsys.readouterr().err


NO_REPLAY = {
    "noise of a site": (
        {
            "transforms": [
                {"class_path": "ClientPrivacy", "init_args": {"max_norm": 1, "noise_multiplier": 1, "noise": "local"}}
            ]
        },
        2,
        "repeats a run to the bit, but ClientPrivacy adds noise that each site draws from a key of its own. Remove",
    ),
    "a clock": ({"clock": {"ticks": 10}}, 2, "repeats a run with sites, which cannot have had 'federation.clock'. Remove"),
    "more rounds": ({}, 3, "which has 2 rounds, but 'trainer.max_epochs' is 3. Set it to 2 at most."),
    "another buffer": ({"strategy": "FedBuff"}, 2, ""),
}


@pytest.mark.parametrize("case", NO_REPLAY)
def test_a_run_that_could_not_be_repeated_to_the_bit_is_refused(case, tmp_path, monkeypatch, capsys):
    if "noise" in case:
        pytest.importorskip("dp_accounting")
    prepare(tmp_path, monkeypatch)
    file = ArrivalFile(tmp_path, ("north", "south", "west"), 0)
    file.begin(0)
    (tmp_path / "arrivals.jsonl").write_text((tmp_path / "arrivals.jsonl").read_text() + row(0, 0, 0, 0) + row(1, 1, 1, 0))
    federation, rounds, message = NO_REPLAY[case]
    config = asynchronous(1, rounds, **federation)
    if not message:
        simulate(config, "again", "--federation.asynchronous.replay", "arrivals.jsonl")
        return
    with pytest.raises(SystemExit):
        simulate(config, "again", "--federation.asynchronous.replay", "arrivals.jsonl")
    assert message in capsys.readouterr().err


HEAD = json.dumps({"clients": ["a", "b"], "seed": 0}) + "\n"


def row(round_idx, order, client, version, lost=False):
    return json.dumps({"round": round_idx, "order": order, "client": client, "version": version, "lost": lost}) + "\n"


BROKEN = {
    "no file": (None, "is 'none.jsonl', which is not a file. Name the arrivals.jsonl in a run's folder"),
    "no head": ("", "does not begin with a line of clients and a seed"),
    "another kind of file": ("round,client\n", "does not begin with a line of clients and a seed"),
    "clients": (json.dumps({"clients": ["a"], "seed": 0}) + "\n", "whose 'clients' is 1, but this run has 2"),
    "seed": (json.dumps({"clients": ["a", "b"], "seed": 4}) + "\n", "whose 'seed' is 4, but this run has 0"),
    "text": (HEAD + row(0, 0, 0, 0) + "x\n", "Line 3 of .* is not an arrival"),
    "no such client": (HEAD + row(0, 0, 2, 0), "Line 2 of .* is not an arrival"),
    "negative": (HEAD + row(-1, 0, 1, 0), "Line 2 of .* is not an arrival"),
    "buffer": (HEAD + row(0, 0, 0, 0) + row(0, 1, 1, 0), "round 0 has 2 updates, but 'federation.asynchronous.buffer' is 1"),
    "the future": (HEAD + row(0, 0, 0, 1), "round 0 has a task of client 0 from model 1, which it cannot have begun"),
    "two at a time": (
        HEAD + row(0, 0, 1, 0) + row(1, 1, 0, 0) + row(2, 2, 0, 1),
        "round 2 has a task of client 0 from model 1, which it cannot have begun",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_file_of_another_run_or_a_broken_one_is_refused(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content, message = BROKEN[case]
    path = Path("none.jsonl" if content is None else "arrivals.jsonl")
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        Recording.read(path, 2, 0, 1)


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path):
    path = tmp_path / "arrivals.jsonl"
    path.write_text(HEAD + row(0, 0, 0, 0) + row(1, 1, 1, 0)[:-9])
    assert Recording.read(path, 2, 0, 1).rounds == 1


def test_the_trainings_of_a_site_are_limited_and_not_the_models_of_the_server(tmp_path, monkeypatch):
    """The server plans nine models, the sites allow four trainings each; the fifth of north is refused and costs its task."""
    prepare(tmp_path, monkeypatch, {"max_rounds": 4})
    arrive(0, 1, 0, 2, 0, 1, 0, 2, 0, 1)
    with pytest.warns(UserWarning, match="without client north: RefusedError|without client north: .*'policy.max_rounds' is 4"):
        federate(asynchronous(1, 9, faults={"policy": "skip"}))
    trained = Counter(client for _, client, _ in arrivals())
    assert trained[0] == 4
    assert max(trained.values()) == 4


def test_privacy_is_charged_for_each_task_before_it_trains_also_if_it_outlasts_rounds(tmp_path, monkeypatch):
    """The ledger never has fewer messages of a site than the site was asked for; at the end, those that came are counted."""
    pytest.importorskip("dp_accounting")
    prepare(tmp_path, monkeypatch)
    private = {"max_norm": 0.5, "noise_multiplier": 1.0, "noise": "local"}
    config = asynchronous(1, 6, transforms=[{"class_path": "ClientPrivacy", "init_args": private}])
    config["trainer"]["default_root_dir"] = "real"
    asked = Counter[str]()

    def charged() -> Counter[str]:
        found = Counter[str]()
        for line in Path("real/privacy_ledger.jsonl").read_text().splitlines():
            found.update(json.loads(line).get("sent", {}))
        return found

    def count(name, parts, ask):
        if b'"ClientTask"' in parts["order"]:
            number = str(("north", "south", "west").index(name))
            asked[number] += 1
            assert charged() >= asked
            assert charged()["2"] == 1  # under way from the start, and never refunded
        return ask()

    HOOK["hook"] = count
    arrive(0, 1, 0, 1, 0, 1)
    federate(config)
    assert asked == {"0": 3, "1": 3}
    assert charged() == {"0": 4, "1": 3, "2": 1}  # those that go on at the end are charged as well
