"""Sites that send nothing but masked words: the bits of a run without masks, also if sites and servers die."""

import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sites_over_bytes as net
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from masked_sites import (
    FIRST,
    REST,
    SECURE,
    SKIP,
    Killed,
    masked,
    masks,
    plain,
    refuses,
    secure,
    step_of,
    steps_of,
    updates_leave,
)

from fl_lightning.errors import ProtocolError
from fl_lightning.flower.site.parent import main as site
from fl_lightning.messages import Note
from fl_lightning.options.secure_aggregation.record import SignedLists


def at(round_idx: int, name: str) -> Callable[..., Any]:
    """Return a hook that loses a site from a round on."""

    def lose(site: str, parts: Any, ask: Any) -> bytes | None:
        step, number = step_of(parts)
        return None if site == name and step == "update" and number >= round_idx else ask()

    return lose


# ---------------------------------------------------------------- the bits of the run without masks

DECAYING = {"threads": 1, "max_epochs": 2, "lr_decay": 0.5, "progress": "run"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedAvgM": {"strategy": "FedAvgM"},
    "FedNova": {"strategy": "FedNova"},
    "Scaffold": {"strategy": "Scaffold"},
    "QFedAvg": {"strategy": "QFedAvg"},
    "clipped": {"transforms": [net.of("ClipUpdate", max_norm=0.05)]},
    "FedLoss": {"strategy": "FedLoss"},
    "AdaFed": {"strategy": net.of("AdaFed", metric="val_loss", mode="min", scored_by="clients")},
    "compressed": {"transforms": [net.of("TopK", share=0.5), net.of("Quantize", bits=8)]},
    "two epochs, decaying": {"local": DECAYING},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", net.slow_but(STRATEGIES, "FedAvg"))
def test_masked_sites_give_the_bits_of_the_simulation_without_masks(name):
    """Also clients that score their own models, that compress, and whose rates decay; a round takes three exchanges."""
    masked()
    config = net.configuration(2, **{"strategy": "FedAvg", **STRATEGIES[name]})
    here = net.simulate(config, "simulated", *net.PARTS)
    net.give_parts()
    steps = steps_of("site1")
    config["federation"] |= SECURE
    assert net.same_bits(here, net.federate(config))
    assert steps == [*FIRST, *REST, *REST]


PLAIN: dict[Any, Any] = {}
"""Runs without masks, by strategy, whether the update was delivered, and the round: several losses have the same."""
DEATHS = [("FedAvg", step, False) for step in (*FIRST, *REST)] + [("FedAvg", step, True) for step in ("update", "open")]
DEATHS += [("Scaffold", "update", False), ("Scaffold", "open", True)]


@pytest.mark.parametrize(("strategy", "step", "after"), net.slow_but(DEATHS, ("FedAvg", "update", False)))
def test_a_site_that_dies_leaves_the_bits_of_the_others(strategy, step, after):
    """Of four, one dies before its keys, shares, update, or signature, after its masked update, or between two rounds."""
    masked(4, lost=1)
    in_round = 1 if step in FIRST else 2
    net.HOOK["hook"] = Killed("site2", step, after, in_round)
    found = net.federate(secure(3, strategy, **SKIP), "masked")
    lost = (strategy, step in ("list", "open") or after, in_round)
    if lost not in PLAIN:
        net.HOOK["hook"] = Killed("site2", "plain", *lost[1:])
        updates_leave("plain")
        PLAIN[lost] = net.federate(plain(3, strategy, **SKIP), "plain")
    assert net.same_bits(PLAIN[lost], found)


@pytest.mark.slow
def test_a_request_that_got_lost_is_sent_again():
    """With retries, one lost request in each step does not cost the site, and three can lose none."""
    masked()
    steps = steps_of("site1", lambda step, ask: ask() if steps.count(step) > 1 else None)
    found = net.federate(secure(faults={"policy": "skip", "retries": 1}))
    assert set(steps) == {*FIRST, *REST}
    assert net.same_bits(found, net.simulate(plain()))


@pytest.mark.parametrize("step", net.slow_but([*FIRST, *REST], "open"))
def test_three_sites_can_lose_none_and_nothing_is_opened(step):
    """The run ends with a message; only in the last step have shares left, of a sum over all three."""
    killed, opened = Killed("site1", step, in_round=1), list[str]()

    def hook(name: str, parts: Any, ask: Any) -> bytes | None:
        opened.extend([name] if step_of(parts)[0] == "open" and name != "site1" else [])
        return killed(name, parts, ask)

    masked()
    net.HOOK["hook"] = hook
    assert re.search(r"Round 0: 2 (of 3 clients|clients have sent shares)", net.refused(secure(**SKIP)))
    assert bool(opened) == (step == "open")


@pytest.mark.slow
@pytest.mark.parametrize("place", [10, -10, None], ids=["another key", "a wrong signature", "no key"])
def test_wrong_keys_for_the_next_round_do_not_harm_this_one(place):
    """The others send no shares for them, and the sum is opened; in the next round, all announce new keys."""

    def spoilt(note: Note) -> Note:
        keys = bytearray.fromhex(note.content["keys"])
        if place is not None:
            keys[place] ^= 1
        return replace(note, content={**note.content, "keys": "" if place is None else keys.hex()})

    def answer(step: str, ask: Any) -> bytes | None:
        return net.changed(ask(), spoilt) if step == "list" and steps.count("list") == 1 else ask()

    masked()
    steps = steps_of("site1", answer)
    assert net.same_bits(net.federate(secure()), net.simulate(plain()))
    assert steps == [*FIRST, *REST, *FIRST, *REST, *REST]


def restarting(step: str, ask: Any, steps: list[str]) -> bytes | None:
    if step == "update" and steps.count("update") == 2:
        net.start_site(Path.cwd(), "site1")
    return ask()  # type: ignore[no-any-return]


@pytest.mark.slow
def test_a_site_that_was_started_again_stays_out():
    """It has no keys in its round, and sites sign no list that grows. In the next round, all announce new keys."""
    masked(4, lost=1)
    steps = steps_of("site1", lambda step, ask: restarting(step, ask, steps))
    found = net.federate(secure(**SKIP), "masked")
    assert steps == [*FIRST, *REST, "update", *FIRST, "update"]
    net.HOOK["hook"] = at(1, "site1")
    updates_leave("plain")
    assert net.same_bits(found, net.federate(plain(**SKIP), "plain"))


@pytest.mark.slow
def test_three_sites_of_which_one_was_started_again_resume():
    """None of three may be lost, so that the run ends; what the site says tells how to go on."""
    masked()
    steps = steps_of("site1", lambda step, ask: restarting(step, ask, steps))
    told = "This client has no keys for the round; it may have been started again meanwhile. All clients"
    assert refuses(secure(), told, "site1")
    assert net.same_bits(net.federate(secure(), "real", "--ckpt_path", "last"), net.simulate(plain()))
    assert steps == [*FIRST, *REST, "update", *FIRST, *REST, *REST]


def crashing(config: dict[str, Any]) -> dict[str, Any]:
    config["trainer"]["callbacks"] = [net.of("sites_over_bytes.Crash", round_idx=1, after=False)]
    return config


@pytest.mark.slow
def test_a_run_goes_on_after_a_crash_of_the_server():
    """A round whose list was signed is repeated with new keys and the same list; nothing else is signed for its model."""
    masked()
    with suppress(SystemExit):
        net.federate(crashing(secure()))
    assert net.same_bits(net.simulate(plain()), net.federate(secure(), "real", "--ckpt_path", "last"))


@pytest.mark.slow
def test_a_site_that_is_lost_after_a_crash_is_still_in_the_sum_that_was_opened():
    """The others have signed their list, and sign no other for the model: the server has kept the sum before it used it."""
    masked(4, update="plain")
    net.HOOK["hook"] = at(2, "site3")
    whole = net.federate(plain(**SKIP), "plain")
    net.HOOK.clear()
    updates_leave(masks(lost=1))
    with suppress(SystemExit):
        net.federate(crashing(secure(**SKIP)), "masked")
    net.ABSENT.add("site3")
    more = ("--ckpt_path", "last", "--federation.pool.min_sites", "3")
    assert net.same_bits(whole, net.federate(secure(**SKIP), "masked", *more))


def test_a_server_that_says_that_a_site_is_lost_cannot_subtract_its_update():
    """It trains at a rate of 1e-6, so that two rounds begin with almost the same model: the difference of their sums was
    site3's update, to 2.8e-8. The run ends, and resumes with the bits of one in which no site was lost."""
    masked(4)
    config = secure(**SKIP)
    config["model"]["init_args"]["optimizer"]["init_args"]["lr"] = 1e-6
    net.HOOK["hook"] = at(1, "site3")
    refusal = "A server that has both could compute the update of site3, and 'policy.update.masks.lost' is 0."
    assert refuses(config, refusal)
    net.HOOK.clear()
    whole = net.federate(config, "real", "--ckpt_path", "last")
    config["federation"].pop("secure_aggregation")
    assert net.same_bits(whole, net.simulate(config))


@given(st.integers(0, 2), st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 4), min_size=1)), max_size=10))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_two_sums_differ_in_sites_that_may_not_be_lost(tmp_path_factory, most_lost, rounds):
    """Whatever lists a server asks for in ten rounds, also in new federations, and of a site that starts again."""
    folder, signed, federation = tmp_path_factory.mktemp("site"), [], 0
    for number, (is_new, lost) in enumerate(rounds):
        federation += is_new
        delivered = sorted(set(range(5)) - lost | {0})
        described = description(f"{federation:032x}", number)
        try:
            SignedLists(folder).sign(described, delivered, most_lost)
        except ProtocolError:
            continue
        signed.append(set(delivered))
    shown = [one ^ other for one in signed for other in signed]
    assert len(set().union(*shown)) <= most_lost


def test_the_staff_agrees_to_a_sum_over_other_sites(capsys, monkeypatch):
    """It reads whose update could be computed, and is asked; then later lists are compared with the new one."""
    Path("audit.jsonl").touch()
    lists, words = SignedLists(Path()), ["site", "approve", "--folder", ".", "--sites"]
    with pytest.raises(SystemExit):
        site(words)
    assert "This site has refused no sum over other sites" in capsys.readouterr().err
    lists.sign(description("a" * 32, 0), [0, 1, 2])
    with pytest.raises(ProtocolError, match="could compute the update of site3, site4"):
        lists.sign(description("b" * 32, 1), range(5), 2)
    site([*words, "--yes"])
    assert capsys.readouterr().out.splitlines() == [
        "This site's update was in a sum over site0, site1, site2.",
        "The server asks for one over site0, site1, site2, site3, site4.",
        "A server that has both could compute the update of site3, site4.",
        "Agreed.",
    ]
    with pytest.raises(ProtocolError, match="could compute the update of site3, site4"):
        lists.sign(description("b" * 32, 2), [0, 1, 2])
    lists.sign(description("b" * 32, 2), range(5))
    lists.sign(description("a" * 32, 0), [0, 1, 2])  # the same list for the same model is the same sum


def test_the_staff_agrees_to_what_it_has_read(capsys, monkeypatch):
    """A server asks for another sum while the staff reads; and it has the sums of all earlier lists, not of the last alone."""

    def answer(question: str) -> str:
        with pytest.raises(ProtocolError):
            lists.sign(description("b" * 32, 9), [0, 1])
        return "yes"

    Path("audit.jsonl").touch()
    lists = SignedLists(Path())
    lists.sign(description("a" * 32, 0), range(4), 1)
    lists.sign(description("a" * 32, 1), range(3), 1)  # site3 is lost
    with pytest.raises(ProtocolError, match="could compute the update of site4"):
        lists.sign(description("b" * 32, 2), [0, 1, 2, 4], 1)
    monkeypatch.setattr("builtins.input", answer)
    site(["site", "approve", "--folder", ".", "--sites"])
    assert "could compute the update of site3, site4." in capsys.readouterr().out
    assert lists.asked()[0] == ["site0", "site1", "site2", "site4"]


def description(federation: str, round_idx: int) -> Any:
    """Return what a list is signed for: a round of five sites, with a model of its own."""
    cohort = tuple((k, f"site{k}") for k in range(5))
    return SimpleNamespace(
        cohort=cohort, model=f"{federation} {round_idx}", federation=federation, round_idx=round_idx, is_before=False, sizes={}
    )


@pytest.mark.slow
def test_another_fit_in_the_same_folder_opens_its_own_sum():
    """It begins with the same model, from which the sum of a fit with another rate was kept."""
    masked()
    finals = []
    for rate, folder in ((0.1, "one"), (0.5, "one"), (0.5, "other")):
        config = secure(1)
        config["trainer"]["enable_checkpointing"] = True
        config["model"]["init_args"]["optimizer"]["init_args"]["lr"] = rate
        finals.append(net.federate(config, folder))
        shutil.rmtree(f"{folder}/checkpoints")
    assert not net.same_bits(finals[0], finals[1])
    assert net.same_bits(finals[1], finals[2])
