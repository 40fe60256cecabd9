"""Sites that send nothing but masked words: the bits of a run without masks, and what a server cannot have."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sites_over_bytes
import torch
import yaml
from masked_sites import FIRST, SECURE, SKIP, Cheat, Killed, first_order, losing_each_step_once, note_with, prepare, step_of
from sites_over_bytes import (
    ABSENT,
    HOOK,
    LINES,
    REGISTERED,
    SERVERS,
    configuration,
    federate,
    same_bits,
    simulate,
    start_site,
)

from fl_lightning import SecureAggregation
from fl_lightning.errors import ClientError, ConfigurationError
from fl_lightning.flower import envelope
from fl_lightning.flower.policy import Policy
from fl_lightning.flower.recipe import RefusedError
from fl_lightning.flower.site_limits import SiteLimits
from fl_lightning.flower.site_record import SiteRecord
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.sums import Grid
from fl_lightning.messages import ClientInfo, ClientTask, EvalOrder, Note
from fl_lightning.options.secure_aggregation.at_clients import LOSS, MasksAtClients
from fl_lightning.options.secure_aggregation.at_server import MaskedSums
from fl_lightning.types import ClientUpdate, Pull, Snapshot


@pytest.fixture(autouse=True)
def _three_again() -> Iterator[None]:
    yield
    HOOK.clear()
    REGISTERED[:] = sites_over_bytes.NAMES


STRATEGIES: dict[str, dict[str, Any]] = {
    "FedAvg": {"strategy": "FedAvg"},
    "proximal term": {"strategy": "FedAvg", "local": {"threads": 1, "proximal_mu": 0.1}},
    "FedAvgM": {"strategy": "FedAvgM"},
    "server's Adam": {"strategy": "FedAvg", "server_optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.01}}},
    "FedSGD": {"strategy": "FedSGD", "local": {"threads": 1, "full_batch": True}},
    "FedNova": {"strategy": "FedNova"},
    "Scaffold": {"strategy": "Scaffold"},
    "QFedAvg": {"strategy": "QFedAvg"},
    "clipped": {"strategy": "FedAvg", "transforms": [{"class_path": "ClipUpdate", "init_args": {"max_norm": 0.05}}]},
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_masked_sites_give_the_bits_of_the_simulation_without_masks(name, tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, 4)
    settings = STRATEGIES[name]
    assert same_bits(simulate(configuration(**settings)), federate(configuration(**settings, **SECURE)))


PLAIN: dict[tuple[str, bool, int], Any] = {}
"""Runs without masks, by strategy, whether the update was delivered, and the round: several losses have the same."""
LOSSES = [(step, False) for step in ("keys", "shares", "update", "list", "open")] + [("update", True), ("open", True)]


@pytest.mark.parametrize(("step", "after"), LOSSES)
@pytest.mark.parametrize("strategy", ["FedAvg", "Scaffold"])
def test_a_site_that_dies_leaves_the_bits_of_the_others(strategy, step, after, tmp_path, monkeypatch):
    """Of four, one dies before its keys, shares, update, or signature, after its masked update, or between two rounds."""
    prepare(tmp_path, monkeypatch, 4, secure_aggregation="allowed")
    in_round = 1 if step in FIRST else 2
    HOOK["hook"] = Killed(tmp_path, "site2", step, after, in_round)
    masked = federate(configuration(strategy=strategy, **SECURE, **SKIP), "masked")
    lost = (strategy, step in ("list", "open") or after, in_round)
    if lost not in PLAIN:
        HOOK["hook"] = Killed(tmp_path, "site2", "plain", *lost[1:])
        for name in REGISTERED:
            (tmp_path / name / "state" / "record.json").unlink()
        PLAIN[lost] = federate(configuration(strategy=strategy, **SKIP), "plain")
    assert same_bits(PLAIN[lost], masked)


def test_ten_sites_may_lose_three_in_one_round(tmp_path, monkeypatch):
    """One before its shares, one after them, one after its masked update: the bits of the others' run."""
    prepare(tmp_path, monkeypatch, 10, secure_aggregation="allowed")
    lost = {"site2": ("shares", False), "site5": ("update", False), "site7": ("update", True)}

    def killing(masked: bool) -> Any:
        each = {name: Killed(tmp_path, name, step if masked else "plain", after, 1) for name, (step, after) in lost.items()}
        return lambda name, parts, ask: each[name](name, parts, ask) if name in each else ask()

    HOOK["hook"] = killing(masked=True)
    masked = federate(configuration(strategy="FedAvg", **SECURE, **SKIP), "masked")
    HOOK["hook"] = killing(masked=False)
    for name in REGISTERED:
        (tmp_path / name / "state" / "record.json").unlink()
    assert same_bits(federate(configuration(strategy="FedAvg", **SKIP), "plain"), masked)


def test_a_request_that_got_lost_is_sent_again(tmp_path, monkeypatch):
    """With retries, one lost request in each step does not cost the site, and three can lose none."""
    prepare(tmp_path, monkeypatch, 3)
    lost = set[str]()
    HOOK["hook"] = losing_each_step_once("site1", lost)
    masked = federate(configuration(strategy="FedAvg", faults={"policy": "skip", "retries": 1}, **SECURE))
    assert lost == {"keys", "shares", "update", "list", "open"}
    assert same_bits(masked, simulate(configuration(strategy="FedAvg")))


@pytest.mark.parametrize("step", ["keys", "shares", "update", "list", "open"])
def test_three_sites_can_lose_none_and_nothing_is_opened(step, tmp_path, monkeypatch, capsys):
    """The run ends with a message; only in the last step have shares left, of a sum over all three."""
    prepare(tmp_path, monkeypatch, 3)
    opened = []
    in_round = 1 if step in FIRST else 2
    killed = Killed(tmp_path, "site1", step, in_round=in_round)

    def hook(name: str, parts: Any, ask: Any) -> bytes | None:
        if killed.rounds == in_round and step_of(parts)[0] == "open" and name != "site1":
            opened.append(name)
        return killed(name, parts, ask)

    HOOK["hook"] = hook
    with pytest.raises(SystemExit):
        federate(configuration(strategy="FedAvg", **SECURE, **SKIP))
    assert re.search(rf"Round {in_round - 1}: 2 (of 3 clients|clients have sent shares)", capsys.readouterr().err)
    assert bool(opened) == (step == "open")


def steps_of_site1(folder: Path, restarted: int | None) -> list[str]:
    """Note the steps that site1 is asked for, and start it again before its training of a round."""
    steps: list[str] = []

    def hook(name: str, parts: Any, ask: Any) -> bytes | None:
        if name == "site1" and (step := step_of(parts)[0]):
            steps.append(step)
            if step == "update" and steps.count("update") - 1 == restarted:
                start_site(folder, name)
        return ask()  # type: ignore[no-any-return]

    HOOK["hook"] = hook
    return steps


REST = ["update", "list", "open"]
"""The steps of a round whose keys and shares were exchanged in the one before."""


def test_a_round_takes_three_exchanges(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, 3)
    steps = steps_of_site1(tmp_path, None)
    masked = federate(configuration(strategy="FedAvg", **SECURE))
    assert same_bits(masked, simulate(configuration(strategy="FedAvg")))
    assert steps == [*FIRST, *REST, *REST, *REST]


@pytest.mark.parametrize("place", [10, -10, None], ids=["another key", "a wrong signature", "no key"])
def test_wrong_keys_for_the_next_round_do_not_harm_this_one(place, tmp_path, monkeypatch):
    """The others send no shares for them, and the sum is opened; in the next round, all announce new keys."""
    prepare(tmp_path, monkeypatch, 3)
    noted = steps_of_site1(tmp_path, None)
    note = HOOK["hook"]

    def hook(name: str, parts: Any, ask: Any) -> bytes | None:
        reply = note(name, parts, ask)
        if name != "site1" or step_of(parts)[0] != "list" or noted.count("list") > 1:
            return reply  # type: ignore[no-any-return]
        found = dict(envelope.opened(reply, ("reply",)))
        keys = bytearray.fromhex(found["replies"][0].content["keys"])
        if place is not None:
            keys[place] ^= 1
        told = {**found["replies"][0].content, "keys": "" if place is None else keys.hex()}
        found["replies"] = [replace(found["replies"][0], content=told)]
        return envelope.reply(**{what: value for what, value in found.items() if what not in ("kind", "version")})

    HOOK["hook"] = hook
    masked = federate(configuration(strategy="FedAvg", **SECURE))
    assert same_bits(masked, simulate(configuration(strategy="FedAvg")))
    assert noted == [*FIRST, *REST, *FIRST, *REST, *REST]


def test_a_site_that_was_started_again_is_lost_for_a_round(tmp_path, monkeypatch):
    """It has no keys. In the next round, all announce new ones."""
    prepare(tmp_path, monkeypatch, 4, secure_aggregation="allowed")
    steps = steps_of_site1(tmp_path, 1)
    masked = federate(configuration(strategy="FedAvg", **SECURE, **SKIP), "masked")
    assert steps == [*FIRST, *REST, "update", *FIRST, *REST]
    lost = []

    def losing(name: str, parts: Any, ask: Any) -> bytes | None:
        lost.extend([name] if name == "site1" and step_of(parts) == ("update", 1) else [])
        return None if name == "site1" and step_of(parts) == ("update", 1) else ask()  # type: ignore[no-any-return]

    HOOK["hook"] = losing
    for name in REGISTERED:
        (tmp_path / name / "state" / "record.json").unlink()
    assert same_bits(masked, federate(configuration(strategy="FedAvg", **SKIP), "plain"))
    assert lost


def test_three_sites_of_which_one_was_started_again_resume(tmp_path, monkeypatch):
    """None of three may be lost, so that the run ends; what the site says tells how to go on."""
    prepare(tmp_path, monkeypatch, 3)
    steps = steps_of_site1(tmp_path, 1)
    config = configuration(strategy="FedAvg", **SECURE)
    with pytest.raises(SystemExit):
        federate(config)
    told = "site1: Refused: This client has no keys for the round; it may have been started again meanwhile. All clients"
    assert [line for line in LINES if line.startswith(told)]
    resumed = federate(config, "real", "--ckpt_path", "last")
    assert same_bits(resumed, simulate(configuration(strategy="FedAvg")))
    assert steps == [*FIRST, *REST, "update", *FIRST, *REST, *REST]


def test_a_run_goes_on_after_a_crash_of_the_server(tmp_path, monkeypatch):
    """A round whose list was signed is repeated with new keys and the same list; nothing else is signed for its model."""
    prepare(tmp_path, monkeypatch, 3)
    whole = simulate(configuration(strategy="FedAvg"))
    crashing = configuration(strategy="FedAvg", **SECURE)
    crashing["trainer"]["callbacks"] = [{"class_path": "sites_over_bytes.Crash", "init_args": {"round_idx": 1, "after": False}}]
    with suppress(SystemExit):
        federate(crashing)
    resumed = federate(configuration(strategy="FedAvg", **SECURE), "real", "--ckpt_path", "last")
    assert same_bits(whole, resumed)


def test_a_site_that_is_lost_after_a_crash_is_still_in_the_sum_that_was_opened(tmp_path, monkeypatch):
    """The others have signed their list, and sign no other for the model: the server has kept the sum before it used it."""
    prepare(tmp_path, monkeypatch, 4, secure_aggregation="allowed")
    settings = {"strategy": "FedAvg", **SKIP}

    def lost(name: str, parts: Any, ask: Any) -> bytes | None:
        step, round_idx = step_of(parts)
        return None if name == "site3" and step == "update" and round_idx == 2 else ask()  # type: ignore[no-any-return]

    HOOK["hook"] = lost
    plain = federate(configuration(**settings), "plain")
    HOOK.clear()
    for name in REGISTERED:
        (tmp_path / name / "state" / "record.json").unlink()
    crashing = configuration(**settings, **SECURE)
    crashing["trainer"]["callbacks"] = [{"class_path": "sites_over_bytes.Crash", "init_args": {"round_idx": 1, "after": False}}]
    with suppress(SystemExit):
        federate(crashing, "masked")
    ABSENT.add("site3")
    more = ("--ckpt_path", "last", "--federation.pool.min_sites", "3")
    assert same_bits(plain, federate(configuration(**settings, **SECURE), "masked", *more))


def test_another_fit_in_the_same_folder_opens_its_own_sum(tmp_path, monkeypatch):
    """It begins with the same model, from which the sum of a fit with another rate was kept."""
    prepare(tmp_path, monkeypatch, 3)
    finals = []
    for rate, folder in ((0.1, "one"), (0.5, "one"), (0.5, "other")):
        config = configuration(strategy="FedAvg", **SECURE)
        config["trainer"] |= {"max_epochs": 1, "enable_checkpointing": True}
        config["model"]["init_args"]["optimizer"]["init_args"]["lr"] = rate
        finals.append(federate(config, folder))
        shutil.rmtree(tmp_path / folder / "checkpoints")
    assert not same_bits(finals[0], finals[1])
    assert same_bits(finals[1], finals[2])


# ---------------------------------------------------------------- a server that cheats


def other_model(asked: Any, parts: Any) -> Any:
    """Send one site a model that differs in the last bit of one number."""
    from fl_lightning.wire import from_bytes, to_bytes

    if "model" not in parts:
        return None
    model = from_bytes(parts["model"])
    name = sorted(model.tensors)[0]
    tensor = model.tensors[name].clone()
    tensor.view(-1)[0] = np.nextafter(tensor.view(-1)[0].item(), np.inf, dtype=np.float32).item()
    return asked, {**parts, "model": to_bytes(replace(model, tensors={**model.tensors, name: tensor}))}


def other_epochs(asked: Any, parts: Any) -> Any:
    order = first_order(asked)
    return ({**asked, "orders": [replace(order, epochs=2)]}, parts) if isinstance(order, ClientTask) else None


def other_place(asked: Any, parts: Any) -> Any:
    """Let one site believe that the training is nearly over, when its rate has decayed."""
    from fl_lightning.messages import Progress

    order = first_order(asked)
    return ({**asked, "orders": [replace(order, progress=Progress(1000))]}, parts) if isinstance(order, ClientTask) else None


def other_settings(asked: Any, parts: Any) -> Any:
    contract = json.loads(json.dumps(asked["contract"]))
    contract["model"]["init_args"]["optimizer"]["init_args"]["lr"] = 1e-9
    return {**asked, "contract": contract}, parts


def order_with(**changes: Any) -> Any:
    def change(asked: Any, parts: Any) -> Any:
        order = first_order(asked)
        return ({**asked, "orders": [replace(order, **changes)]}, parts) if isinstance(order, ClientTask) else None

    return change


def other_session(asked: Any, parts: Any) -> Any:
    """Have one site forget what it keeps between rounds."""
    from fl_lightning.wire import from_bytes, to_bytes

    if "model" not in parts:
        return None
    return asked, {**parts, "model": to_bytes(replace(from_bytes(parts["model"]), session="another"))}


def evaluation(asked: Any, parts: Any) -> Any:
    order = first_order(asked)
    if not isinstance(order, ClientTask):
        return None
    return {**asked, "orders": [EvalOrder(order.version, order.client, "training", "evaluation")]}, parts


ATTACKS: dict[str, tuple[Any, str]] = {
    "another model": (other_model, "The model that this site got differs from the one that all sites"),
    "more epochs": (other_epochs, "The order that this site got differs from the one that all sites"),
    "a later place": (other_place, "The order that this site got differs from the one that all sites"),
    "other settings": (other_settings, "The settings that this site got differs from the one that all sites"),
    "an evaluation": (
        evaluation,
        "The order asks for a figure or a model of this site alone, but only sums over sites leave it",
    ),
    "a model to pass on": (
        order_with(delivers=False),
        "The order asks for a figure or a model of this site alone, but only sums over sites leave it",
    ),
    "a start of its own": (
        order_with(start=Snapshot(torch.zeros(53), torch.zeros(0, dtype=torch.int64))),
        "The order has a model for this site alone, so the server could tell the sites' updates apart",
    ),
    "a pull of its own": (
        order_with(pull=Pull(torch.zeros(53), 1e9)),
        "The order has a model for this site alone, so the server could tell the sites' updates apart",
    ),
    "another session": (other_session, "The session that this site got differs from the one that all sites"),
    "an invented site": (
        note_with("keys", terms=lambda d: {**d, "cohort": [*d["cohort"], [3, "invented"]]}),
        "The round has sites whose public keys this site does not have ('policy.peers'): 'invented'",
    ),
    "an exchanged name": (
        note_with("keys", terms=lambda d: {**d, "cohort": [[0, "site1"], [1, "site0"], [2, "site2"]]}),
        "The round under masks calls this site by another name",
    ),
    "a sum of two": (
        note_with("keys", terms=lambda d: {**d, "cohort": [[0, "site0"], [1, "site1"]]}),
        "The round has 2 sites, but must have 100 at most, and at least this site's 'policy.min_cohort' of 3",
    ),
    "another federation": (
        note_with("keys", terms=lambda d: {**d, "federation": "f" * 32}),
        "The federation that this site got differs from the one that all sites",
    ),
    "a list of two": (
        note_with("list", delivered=lambda d: [0, 1]),
        "The updates of 2 sites would be added, but this site's 'policy.min_cohort' is 3",
    ),
    "a list without it": (note_with("list", delivered=lambda d: [5, 6, 7]), "The list of survivors does not fit the round"),
    "an odd list": (note_with("list", delivered=lambda d: "all"), "The list of survivors cannot be read"),
    "an unknown step": (note_with("open", step=lambda d: "keys and all"), "A round under masks has no such step"),
    "no description": (
        note_with("keys", terms=lambda d: None),
        "The description of the round under masks cannot be read",
    ),
    "a share that is none": (
        note_with("shares", announced=lambda d: {"1": "xyz"}),
        "A message of the round under masks cannot",
    ),
    "keys of other terms": (
        note_with("update", description=lambda d: {**d, "threshold": 0.9}),
        "The round under masks is not the one for which this client has announced keys",
    ),
    "a short key": (note_with("shares", announced=lambda d: {**d, "1": "00"}), "An announcement of keys is too short"),
}


def test_sites_that_require_noise_agree_on_the_model(tmp_path, monkeypatch):
    """They set limits of the model themselves, so that no failure tells of exact numbers."""
    prepare(tmp_path, monkeypatch, 3, min_noise=0.5)
    noise = {"max_norm": 1.0, "noise_multiplier": 1.0, "noise": "local", "delta": 1e-3}
    uniform = {"class_path": "FedAvg", "init_args": {"weighting": "uniform"}}
    private = [{"class_path": "ClientPrivacy", "init_args": noise}]
    federate(configuration(strategy=uniform, transforms=private, **SECURE))
    assert sum("trained" in line for line in LINES) == 9


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_server_that_cheats_a_site_gets_nothing_of_it(attack, tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, 3)
    change, message = ATTACKS[attack]
    HOOK["hook"] = Cheat("site0", change)
    with pytest.raises(SystemExit):
        federate(configuration(strategy="FedAvg", **SECURE))
    assert [line for line in LINES if line.startswith("site0: Refused") and message in line], LINES


LIES: dict[str, tuple[Any, str, str]] = {
    "a coarse grid": (
        lambda d: replace(d, grids={n: replace(g, largest=2.0**50, certain=True) for n, g in d.grids.items()}),
        "FedAvg",
        "The grid of the sum 'state' is too coarse for this site's numbers",
    ),
    "a grid for one number": (
        lambda d: replace(d, grids={"state": Grid(((1, 2.0**-30), (52, 1.0)), d.grids["state"].largest, True)}),
        "FedAvg",
        "The grid of the sum 'state' is too coarse for this site's numbers, or not the one that follows from the model",
    ),
    "a grid for the losses": (
        lambda d: replace(d, grids={LOSS: Grid(((1, 2.0**30),), 2.0**30, True)}),
        "FedAvg",
        "The grid of the sum 'figure: loss' is too coarse for this site's numbers",
    ),
    "a coarse grid of control variates": (
        lambda d: replace(d, grids={**d.grids, "control": Grid(((53, 2.0**45),), 1.0)}),
        "Scaffold",
        "The grid of the sum 'control' is too coarse for this site's numbers",
    ),
    "huge sums": (
        lambda d: replace(d, sizes={**d.sizes, "more": 2**24}),
        "FedAvg",
        "The list of sums that this site got differs from the one that all sites",
    ),
    "another round": (
        lambda d: replace(d, round_idx=d.round_idx + 1),
        "FedAvg",
        "The round that this site got differs from the one that all sites",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_description_that_all_sites_agree_on_may_still_not_single_one_out(lie, tmp_path, monkeypatch):
    """On a grid so coarse that the others' numbers are rounded to 0, the sum would be one site's."""
    prepare(tmp_path, monkeypatch, 3)
    change, strategy, message = LIES[lie]
    described = MaskedSums._described
    monkeypatch.setattr(MaskedSums, "_described", lambda *arguments: change(described(*arguments)))
    with pytest.raises(SystemExit):
        federate(configuration(strategy=strategy, **SECURE))
    assert [line for line in LINES if "Refused" in line and message in line], LINES


def test_a_model_is_opened_with_one_list_whatever_the_federation(tmp_path, monkeypatch, capsys):
    """Two sums over lists that differ in one site would show its update; the same list again shows nothing new."""
    prepare(tmp_path, monkeypatch, 4, min_cohort=3)
    config = configuration(strategy="FedAvg", **SECURE, **SKIP)
    federate(config, "first")
    federate(config, "again")  # a new federation, with the same models and the same sites
    ABSENT.add("site3")
    config["federation"]["pool"] = {"class_path": "sites_over_bytes.BytesSites", "init_args": {"min_sites": 3}}
    capsys.readouterr()
    with pytest.raises(SystemExit):
        federate(config, "third", "--federation.pool.min_sites", "3")
    assert [line for line in LINES if "has signed another list of survivors for the same model" in line]


def test_the_sites_of_a_federation_stay_the_same(tmp_path, monkeypatch):
    """Otherwise each round could leave out another one."""
    prepare(tmp_path, monkeypatch, 5)
    with pytest.raises(SystemExit):
        federate(configuration(strategy="FedAvg", clients_per_round=4, **SECURE))
    assert [line for line in LINES if "The sites of the round are others than before in this federation" in line]


def test_a_round_that_was_signed_is_not_signed_for_another_model(tmp_path, monkeypatch):
    """A server that goes back to an early checkpoint, with a model changed in its last bit."""
    from fl_lightning.errors import ProtocolError
    from fl_lightning.options.secure_aggregation.description import RoundDescription
    from fl_lightning.options.secure_aggregation.record import SignedLists

    def described(round_idx: int, model: str, federation: str = "f") -> RoundDescription:
        return RoundDescription(federation, "c", "s", round_idx, ((0, "a"), (1, "b"), (2, "c")), 0.67, model, "w", {}, {})

    lists = SignedLists(tmp_path)
    lists.sign(described(4, "m4"), [0, 1, 2])
    lists = SignedLists(tmp_path)  # after a restart
    lists.sign(described(4, "m4"), [2, 1, 0])
    for round_idx in (3, 4):
        with pytest.raises(ProtocolError, match="has signed the list of survivors of round 4 of this federation"):
            lists.sign(described(round_idx, "changed"), [0, 1, 2])
    with pytest.raises(ProtocolError, match="another list of survivors for the same model"):
        lists.sign(described(5, "m4", "g"), [0, 1])
    for others in (((0, "a"), (1, "b"), (2, "d")), ((0, "a"), (1, "b"), (2, "c"), (3, "d"))):  # a list names sites, not numbers
        with pytest.raises(ProtocolError, match="another list of survivors for the same model"):
            lists.sign(replace(described(5, "m4", "g"), cohort=others), [0, 1, len(others) - 1])
    lists.sign(replace(described(5, "m4", "h"), cohort=((0, "c"), (1, "b"), (2, "a"))), [0, 1, 2])
    lists.sign(described(5, "m5"), [0, 1])


def test_no_secret_is_on_the_disk_or_in_the_log(tmp_path, monkeypatch):
    """Neither seeds, nor keys, nor shares, in any form; and no number of a single site is in a reply."""
    drawn: list[bytes] = []
    replies: list[bytes] = []
    import secrets

    real = secrets.token_bytes

    def noted(size: int = 32) -> bytes:
        drawn.append(real(size))
        return drawn[-1]

    prepare(tmp_path, monkeypatch, 3)
    monkeypatch.setattr("fl_lightning.options.secure_aggregation.at_clients.secrets.token_bytes", noted)

    def hook(name: str, parts: Any, ask: Any) -> bytes | None:
        replies.append(ask())
        return replies[-1]

    HOOK["hook"] = hook
    federate(configuration(strategy="FedAvg", **SECURE))
    assert len(drawn) > 9 * 3
    shares = set()
    for content in replies:
        for reply in envelope.opened(content, ("reply",)).get("replies", ()):
            if isinstance(reply, Note):
                for kind in ("seeds", "secrets"):
                    shares |= {bytes.fromhex(one) for one in reply.content.get(kind, {}).values()}
            elif hasattr(reply, "num_steps"):
                told = (
                    reply.train_loss,
                    reply.local_score,
                    reply.update_norm,
                    dict(reply.metrics),
                    reply.seconds,
                    reply.optimizer,
                )
                assert told == (None, None, None, {}, 0.0, "")
                assert reply.model.vector.numel() == 0
    assert shares
    files = [path.read_bytes() for name in REGISTERED for path in (tmp_path / name / "state").rglob("*") if path.is_file()]
    for secret in (*drawn, *shares):
        for form in (secret, secret.hex().encode()):
            assert not any(form in content for content in files)


def test_no_limit_of_the_servers_tells_how_large_a_site_s_weights_are(tmp_path, monkeypatch):
    """Otherwise a server would find the largest one by trying limits: a round without a signed list may begin again."""
    from fl_lightning.wire import from_bytes, to_bytes

    def limited(name: str, parts: Any, ask: Any) -> bytes | None:
        if name != "site0" or "model" not in parts:
            return ask()  # type: ignore[no-any-return]
        model = replace(from_bytes(parts["model"]), max_abs_weight=1e-3)
        return SERVERS[name].answer({**parts, "model": to_bytes(model)})

    prepare(tmp_path, monkeypatch, 3)
    HOOK["hook"] = limited
    masked = federate(configuration(strategy="FedAvg", **SECURE))
    assert same_bits(simulate(configuration(strategy="FedAvg")), masked)


def test_a_failure_tells_nothing_but_that_it_failed(tmp_path, monkeypatch):
    """The class of an error may depend on the rows, and a server could choose models by which it does."""
    prepare(tmp_path, monkeypatch, 4)
    replies = []

    def hook(name: str, parts: Any, ask: Any) -> bytes | None:
        reply = ask()
        replies.append((name, step_of(parts)[0], envelope.opened(reply, ("reply",))))
        return reply  # type: ignore[no-any-return]

    real = MasksAtClients.seal

    def broken(self: Any, task: Any, update: Any) -> Any:
        if update.client == 1:
            raise ClientError("A number of 'state' is too large")
        return real(self, task, update)

    monkeypatch.setattr(MasksAtClients, "seal", broken)
    HOOK["hook"] = hook
    federate(configuration(strategy="FedAvg", **SECURE, **SKIP))
    told = [found["replies"][0].cause for name, step, found in replies if (name, step) == ("site1", "update")]
    assert len(told) == 3
    assert all(re.fullmatch(r"An error \(code [0-9a-f]{8}; its text is in the site's errors.log\)", one) for one in told)


# ---------------------------------------------------------------- a site that cheats


def lying(change: Any) -> Any:
    """Let site1 change what it replies."""

    def hook(name: str, parts: Any, ask: Any) -> bytes | None:
        found = dict(envelope.opened(ask(), ("reply",)))
        if name == "site1" and "replies" in found:
            found["replies"] = [change(one) if isinstance(one, ClientUpdate) else one for one in found["replies"]]
        return envelope.reply(**{name: value for name, value in found.items() if name not in ("kind", "version")})

    return hook


def other_snapshot(update: ClientUpdate, **changes: Any) -> ClientUpdate:
    return replace(
        update, model=Snapshot(**{"vector": update.snapshot.vector, "counters": update.snapshot.counters, **changes})
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda u: replace(u, extras={}), "Client 1 sent no masked words in round 0, but (59,) of int64 are needed"),
        (lambda u: replace(u, extras={"words": torch.zeros(3)}), "Client 1 sent masked words of torch.float32 and shape (3,)"),
        (
            lambda u: other_snapshot(u, counters=torch.zeros(7, dtype=torch.int64)),
            "Site site1 (client 1): its counters are torch.int64 of shape (7,), but must be 0 of int64",
        ),
        (
            lambda u: replace(u, extras={"words": u.extras["words"] + 2**61}),
            "The sum 'figure: examples' of the masked updates is outside its range",
        ),
    ],
)
def test_a_site_that_sends_something_else_is_named(change, message, tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch, 4)
    HOOK["hook"] = lying(change)
    with pytest.raises(SystemExit):
        federate(configuration(strategy="FedAvg", **SECURE))
    assert message in capsys.readouterr().err


def test_tensors_beside_the_words_are_not_read(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, 3)
    honest = simulate(configuration(strategy="FedAvg"))
    HOOK["hook"] = lying(lambda update: other_snapshot(update, vector=torch.ones(9), moved={"x": torch.ones(2)}))
    assert same_bits(honest, federate(configuration(strategy="FedAvg", **SECURE)))


# ---------------------------------------------------------------- the site decides


def test_a_site_that_requires_masks_refuses_a_federation_without(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch, 3)
    with pytest.raises(SystemExit):
        federate(configuration(strategy="FedAvg"))
    message = "This site's 'policy.secure_aggregation' is 'required', so it sends nothing but its part of a sum"
    assert message in capsys.readouterr().err


def test_sizes_leave_only_in_sums_if_the_site_says_so(tmp_path, monkeypatch):
    """The weights are the numbers of examples, inside of the masks: the mean is that of float64, and no message has a size."""
    prepare(tmp_path, monkeypatch, 3, examples="masked")
    told: list[Any] = []

    def hook(name: str, parts: Any, ask: Any) -> bytes | None:
        reply = ask()
        found = envelope.opened(reply, ("reply",))
        told.extend([found.get("info"), *found.get("replies", ())])
        return reply  # type: ignore[no-any-return]

    HOOK["hook"] = hook
    masked = federate(configuration(strategy="FedAvg", **SECURE))
    plain = simulate(configuration(strategy="FedAvg"))
    assert all(torch.allclose(masked[name], plain[name], rtol=0, atol=1e-6) for name in plain)
    infos = [one for one in told if isinstance(one, ClientInfo)]
    updates = [one for one in told if isinstance(one, ClientUpdate)]
    assert {(one.num_examples, one.label_counts, one.sampling) for one in infos} == {(1, None, None)}
    assert len(updates) == 9
    assert {(one.num_examples, one.num_steps) for one in updates} == {(1, 0)}


def test_a_site_that_hides_its_sizes_still_counts_its_steps(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, 3, examples="masked", min_steps=4)
    with pytest.raises(SystemExit):
        federate(configuration(strategy="FedAvg", **SECURE))
    assert [line for line in LINES if "The turn has 2 steps, but this site's 'policy.min_steps' is 4" in line]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"examples": "masked", "secure_aggregation": "allowed"}, "'policy.examples' must be exact or rounded, unless"),
        ({"peers": None}, "'policy.peers' must be a folder with 'policy.secure_aggregation': required"),
        ({"min_cohort": 1}, "'policy.min_cohort' must be 2 or above"),
        ({"peers": "nowhere"}, "'policy.peers' is 'nowhere', which is no folder with files NAME.pub"),
        ({"secure_aggregation": "sometimes"}, "secure_aggregation"),
    ],
)
def test_wrong_policies_are_named(policy, message, tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        prepare(tmp_path, monkeypatch, 3, **policy)


def test_whole_numbers_that_would_leave_are_refused_by_the_site():
    """BatchNorm's counts of batches may leave, since they follow from the numbers of steps."""
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    limits = SiteLimits(Policy())
    limits.check_buffers([SecureAggregation()], ModelState(module))
    module.register_buffer("seen", torch.zeros((), dtype=torch.int64))
    limits.check_buffers([], ModelState(module))
    with pytest.raises(RefusedError, match="The module has a buffer 'seen' of whole numbers"):
        limits.check_buffers([SecureAggregation()], ModelState(module))


@pytest.mark.parametrize(
    "strategy",
    [
        {"class_path": "QFedAvg", "init_args": {"q": 20.0}},
        {"class_path": "FedLoss", "init_args": {"examples": 5.0}},
        {"class_path": "AdaFed", "init_args": {"metric": "val_accuracy", "power": 30.0, "scored_by": "clients"}},
    ],
    ids=["QFedAvg", "FedLoss", "AdaFed"],
)
def test_no_power_makes_one_site_the_whole_sum(strategy, tmp_path, monkeypatch, capsys):
    """With q = 20, losses of 1.14, 1.11 and 1.04 gave one site of three 59 % of the weight."""
    prepare(tmp_path, monkeypatch, 3)
    for name in REGISTERED:
        site = yaml.safe_load((tmp_path / name / "data.yaml").read_text())
        (tmp_path / name / "data.yaml").write_text(yaml.safe_dump({**site, "client_validation": 0.3}))
        start_site(tmp_path, name)
    with pytest.raises(SystemExit):
        federate(configuration(strategy=strategy, **SECURE))
    assert "of a number of theirs, so that one site could be nearly all of the sum" in capsys.readouterr().err


def test_a_federation_in_which_trainings_fail_waits_for_the_staff(tmp_path, monkeypatch):
    """Whether one fails may depend on single rows: a server could ask with a model that overflows on some."""
    prepare(tmp_path, monkeypatch, 3)
    record = SiteRecord(tmp_path / "site0" / "state", Policy(federations="any"))
    record.admit("f" * 32, "digest")
    assert [record.note_failure("f" * 32, 3) for _ in range(3)] == [False, False, True]
    with pytest.raises(RefusedError, match="A training of this federation has failed here"):
        record.admit("f" * 32, "digest")
    assert Policy().most_failures is None
    assert Policy(secure_aggregation="required", peers="peers").most_failures == 3
    assert Policy(min_noise=1.0).most_failures == 1


# ---------------------------------------------------------------- together with other parts

BEST = {"metric": "val_loss", "mode": "min", "scored_by": "clients"}
TOGETHER: dict[str, dict[str, Any]] = {
    "FedLoss": {"strategy": "FedLoss"},
    "AdaFed": {"strategy": {"class_path": "AdaFed", "init_args": BEST}},
    "compressed": {
        "strategy": "FedAvg",
        "transforms": [
            {"class_path": "TopK", "init_args": {"share": 0.5}},
            {"class_path": "Quantize", "init_args": {"bits": 8}},
        ],
    },
    "halves": {"strategy": "FedAvg", "transforms": [{"class_path": "HalfPrecision"}]},
    "two epochs, decaying": {
        "strategy": "FedAvg",
        "local": {"threads": 1, "max_epochs": 2, "lr_decay": 0.5, "progress": "run"},
    },
}


@pytest.mark.parametrize("name", TOGETHER)
def test_masks_together_with_other_parts_give_the_same_bits(name, tmp_path, monkeypatch):
    """Clients that score their own models, that compress, and whose rates decay."""
    policy = {"secure_aggregation": "required", "peers": str(tmp_path / "peers")}
    sites_over_bytes.prepare(tmp_path, monkeypatch, policy)
    config = configuration(**TOGETHER[name])
    here = simulate(config, "simulated", "--data.client_validation", "0.25", "--data.client_test", "0.25")
    sites_over_bytes.give_parts(tmp_path)
    config["federation"] |= SECURE
    assert same_bits(here, federate(config))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "FedMedian"}, "FedMedian needs every client's model to combine them, but with"),
        ({"strategy": "AFL"}, "AFL does not say which sums it adds up"),
        ({"strategy": "FedAvg", "route": "FedCyclic"}, "On the route FedCyclic clients pass models to each other"),
        (
            {"strategy": "FedAvg", "local": {"threads": 1, "max_epochs": 2, "partial_work": {"share": 0.5}}},
            "The order that this site got differs",
        ),
    ],
)
def test_what_masks_exclude_is_named(settings, message, tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch, 3)
    with pytest.raises(SystemExit):
        federate(configuration(**{**settings, **SECURE}))
    assert message in capsys.readouterr().err + " ".join(LINES)


def test_noise_in_each_step_and_masks_hold_together(tmp_path, monkeypatch):
    """The site requires both; what leaves is masked, and what is under the mask is noisy, so no run equals another."""
    prepare(tmp_path, monkeypatch, 3, min_noise=0.5, evaluations=[])
    local = {"threads": 1, "privacy": {"noise_multiplier": 0.8, "max_grad_norm": 1.0}}
    one, other = (federate(configuration(strategy="FedAvg", local=local, **SECURE), f"run{k}") for k in range(2))
    assert not same_bits(one, other)
    assert all(torch.isfinite(tensor).all() for tensor in one.values())
