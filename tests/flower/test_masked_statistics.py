"""Sites measure their inputs by sums that only open as totals: the bits without masks, and what a server cannot have."""

from __future__ import annotations

import math
import re
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import sites_over_bytes
import torch
from masked_sites import SECURE, SKIP, Cheat, Killed, losing_each_step_once, note_with, prepare, step_of
from sites_over_bytes import (
    ABSENT,
    HOOK,
    LINES,
    REGISTERED,
    SERVERS,
    TOLD,
    configuration,
    federate,
    same_bits,
    simulate,
    start_site,
)
from torch.utils.data import TensorDataset

from fl_lightning.flower import envelope, site_check
from fl_lightning.flower.policy import Policy
from fl_lightning.flower.site_data import SiteData
from fl_lightning.flower.site_settings import SiteSettings
from fl_lightning.functional.exact_moments import Moments, moments_of
from fl_lightning.messages import Note
from fl_lightning.options.secure_aggregation.description import RoundDescription

STEPS = ["keys", "shares", "update", "list", "open"]
CONSENT = {"statistics": True}


@pytest.fixture(autouse=True)
def _three_again() -> Iterator[None]:
    yield
    HOOK.clear()
    REGISTERED[:] = sites_over_bytes.NAMES


def scaled(rounds: int = 1, features: int = 6, **federation: Any) -> dict[str, Any]:
    """Return the configuration of a network whose inputs are scaled."""
    config = configuration(**{"strategy": "FedAvg", **federation})
    inner = config["model"]["init_args"]["network"]
    scale = {"num_features": features, "network": inner}
    config["model"]["init_args"]["network"] = {"class_path": "Standardized", "init_args": scale}
    config["trainer"]["max_epochs"] = rounds
    return config


def scale_of(folder: Path, names: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and deviation of some sites' rows, as float32 of sums that ``math.fsum`` rounds once."""
    read = [np.loadtxt(folder / name / "own.csv", delimiter=",", skiprows=1)[:, :6] for name in names]
    rows = np.concatenate(read).astype(np.float32).astype(float)
    means = [math.fsum(column) / len(rows) for column in rows.T]
    deviations = [math.sqrt(math.fsum((column - mean) ** 2) / len(rows)) for column, mean in zip(rows.T, means, strict=True)]
    return torch.tensor(means), torch.tensor(deviations)


def has_scale(final: dict[str, Any], folder: Path, names: Any) -> bool:
    """Return whether a model has the scale of these sites, to the last bit."""
    found = tuple(tensor for kind in ("mean", "std") for name, tensor in final.items() if name.endswith(f"network.{kind}"))
    return all(map(torch.equal, found, scale_of(folder, names)))


def refused(config: dict[str, Any], capsys: Any, folder: str = "real", *more: str) -> str:
    with pytest.raises(SystemExit):
        federate(config, folder, *more)
    return " ".join(capsys.readouterr().err.split())


# ---------------------------------------------------------------- the bits of the run without masks


@pytest.mark.filterwarnings("error:Standardized has not been measured")
@pytest.mark.parametrize("strategy", ["FedAvg", "Scaffold"])
def test_three_sites_have_the_scale_and_the_bits_of_the_run_without_masks(strategy, tmp_path, monkeypatch):
    """No reply has a site's sums, and the keys and shares of round 0 travel with the last two steps before it."""
    prepare(tmp_path, monkeypatch, 3, **CONSENT)
    steps: list[str] = []
    replies: list[Any] = []

    def hook(name: str, parts: Any, ask: Any) -> bytes:
        steps.extend([step_of(parts)[0]] if name == "site1" else [])
        replies.append(ask())
        return replies[-1]  # type: ignore[no-any-return]

    HOOK["hook"] = hook
    masked = federate(scaled(2, strategy=strategy, **SECURE))
    assert same_bits(masked, simulate(scaled(2, strategy=strategy)))
    assert same_bits(masked, simulate(scaled(2, strategy=strategy, **SECURE), "masked simulation"))
    assert has_scale(masked, tmp_path, REGISTERED)
    rest = STEPS[2:]
    assert [step for step in steps if step] == [*STEPS, *rest, *rest]
    told = [envelope.opened(reply, ("reply",)) for reply in replies]
    assert {found["info"].moments for found in told if "info" in found} == {()}
    notes = [one for found in told for one in found.get("replies", ()) if isinstance(one, Note)]
    words = [note.content["words"] for note in notes if "words" in note.content]
    assert [len(one) for one in words] == [3 * 6 * 11] * 3
    assert all(len(set(one.tolist())) == len(one) for one in words)  # the words of small numbers would be 0 and -1


LOSSES = [(step, False) for step in STEPS] + [("update", True), ("open", True)]


@pytest.mark.parametrize(("step", "after"), LOSSES)
def test_a_site_that_dies_leaves_the_scale_of_those_who_delivered(step, after, tmp_path, monkeypatch):
    """Of four sites, one dies before the first round, and the others train."""
    prepare(tmp_path, monkeypatch, 4, **CONSENT)
    HOOK["hook"] = Killed(tmp_path, "site2", step, after, in_round=1)
    final = federate(scaled(**SECURE, **SKIP))
    delivered = step in ("list", "open") or after
    assert has_scale(final, tmp_path, REGISTERED if delivered else ["site0", "site1", "site3"])


@pytest.mark.parametrize("step", STEPS)
def test_three_sites_can_lose_none_and_no_total_is_opened(step, tmp_path, monkeypatch, capsys):
    """Only in the last step have shares left, of a sum over all three."""
    prepare(tmp_path, monkeypatch, 3, **CONSENT)
    killed, opened = Killed(tmp_path, "site1", step, in_round=1), []

    def hook(name: str, parts: Any, ask: Any) -> bytes | None:
        opened.extend([name] if step_of(parts)[0] == "open" and name != "site1" else [])
        return killed(name, parts, ask)

    HOOK["hook"] = hook
    assert re.search(r"Before round 0: 2 (of 3 clients|clients have sent shares)", refused(scaled(**SECURE, **SKIP), capsys))
    assert bool(opened) == (step == "open")


def test_requests_that_got_lost_are_sent_again(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, 3, **CONSENT)
    lost = set[str]()
    HOOK["hook"] = losing_each_step_once("site1", lost)
    masked = federate(scaled(faults={"policy": "skip", "retries": 1}, **SECURE))
    assert lost == {*STEPS}
    assert has_scale(masked, tmp_path, REGISTERED)


def test_sites_whose_last_answer_before_round_0_got_lost_announce_new_keys(tmp_path, monkeypatch):
    """The total is opened without the shares of one of four, and no site is lost in round 0."""
    prepare(tmp_path, monkeypatch, 4, **CONSENT)
    steps = []

    def hook(name: str, parts: Any, ask: Any) -> bytes | None:
        if name != "site1" or not (step := step_of(parts)[0]):
            return ask()  # type: ignore[no-any-return]
        steps.append(step)
        return None if step == "open" and steps.count("open") == 1 else ask()

    HOOK["hook"] = hook
    assert same_bits(federate(scaled(**SECURE, **SKIP)), simulate(scaled()))
    assert steps == [*STEPS, *STEPS]


def test_sites_that_only_allow_masks_tell_nothing_else_to_a_server_with_masks(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, 3, secure_aggregation="allowed", **CONSENT)
    plain = federate(scaled(), "plain")
    assert all(info.moments for info in TOLD.values())
    assert same_bits(plain, federate(scaled(**SECURE), "masked"))
    assert all(info.moments == () for info in TOLD.values())


# ---------------------------------------------------------------- a server that cheats


def test_a_second_total_has_the_same_list_in_whatever_federation(tmp_path, monkeypatch, capsys):
    """The same list tells nothing new; the difference of two lists would be one site's sums."""
    prepare(tmp_path, monkeypatch, 4, **CONSENT)
    one, other = (federate(scaled(**SECURE, **SKIP), folder) for folder in ("first", "again"))
    assert same_bits(one, other)
    ABSENT.add("site3")
    more = ("--federation.pool.min_sites", "3")
    capsys.readouterr()
    told = refused(scaled(**SECURE, **SKIP), capsys, "third", *more)
    assert "Before round 0: 0 of 4 clients have signed the list of survivors" in told
    message = "This site has signed another list of survivors for the sums of the inputs, and the difference of two totals"
    assert sum(message in line for line in LINES) == 3
    for name in REGISTERED[:3]:
        (tmp_path / name / "state" / "signed_sums.json").unlink()
    config = scaled(**SECURE, **SKIP)
    config["seed_everything"] = 1  # another model, for which no list has been signed
    assert has_scale(federate(config, "fourth", *more), tmp_path, REGISTERED[:3])


def test_sums_of_data_that_have_changed_are_not_added(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, 3, **CONSENT)
    federate(scaled(**SECURE), "first")
    path = tmp_path / "site1" / "own.csv"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    start_site(tmp_path, "site1")
    with pytest.raises(SystemExit):
        federate(scaled(**SECURE), "changed")
    message = "site1: Refused: The data of this site have changed since it told the sums of its inputs"
    assert [line for line in LINES if message in line]


ATTACKS: dict[str, tuple[Any, str]] = {
    "a list of two": (
        note_with("list", delivered=lambda d: [0, 1]),
        "The updates of 2 sites would be added, but this site's 'policy.min_cohort' is 3",
    ),
    "a sum of two": (
        note_with("keys", terms=lambda d: {**d, "cohort": [[0, "site0"], [1, "site1"]]}),
        "The round has 2 sites, but must have 100 at most, and at least this site's 'policy.min_cohort' of 3",
    ),
    "an invented site": (
        note_with("keys", terms=lambda d: {**d, "cohort": [*d["cohort"], [3, "invented"]]}),
        "The round has sites whose public keys this site does not have ('policy.peers'): 'invented'",
    ),
    "another question": (
        note_with("update", description=lambda d: {**d, "sizes": {"sums of the inputs": 15}}),
        "The list of sums that this site got differs from the one that all sites",
    ),
    "the numbers as those of a round": (
        note_with("update", description=lambda d: {**d, "round_idx": 0}),
        "The round under masks is not the one for which this client has announced keys",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_server_that_cheats_a_site_gets_no_sums_of_it(attack, tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, 3, **CONSENT)
    change, message = ATTACKS[attack]
    HOOK["hook"] = Cheat("site0", change)
    with pytest.raises(SystemExit):
        federate(scaled(**SECURE))
    name = "site2" if "site0" in message else "site0"
    assert [line for line in LINES if line.startswith(f"{name}: Refused") and message in line], LINES


LIES: dict[str, tuple[Any, str]] = {
    "a question under another name": (
        lambda d: replace(d, model="0" * 64),
        "The list of sums that this site got differs from the one that all sites",
    ),
    "other numbers": (
        lambda d: replace(d, sizes={"numbers": 18}),
        "The list of sums that this site got differs from the one that all sites",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_question_that_sites_do_not_know_is_refused(lie, tmp_path, monkeypatch):
    """Each question has one list, so a server must not have several for the same numbers."""
    prepare(tmp_path, monkeypatch, 3, **CONSENT)
    change, message = LIES[lie]
    plain = RoundDescription.plain
    monkeypatch.setattr(RoundDescription, "plain", lambda self: plain(change(self)))
    with pytest.raises(SystemExit):
        federate(scaled(**SECURE))
    assert [line for line in LINES if "Refused" in line and message in line], LINES


def test_a_second_question_of_a_federation_is_not_signed(tmp_path, monkeypatch):
    """All sites have six channels, so that no other one could be answered; it is refused by itself."""
    from fl_lightning.errors import ProtocolError
    from fl_lightning.options.secure_aggregation.record import SignedLists

    sites = ((0, "a"), (1, "b"), (2, "c"))
    asked = RoundDescription("f", "c", "s", -1, sites, 0.67, "question", "", {"sums of the inputs": 18}, {})
    lists = SignedLists(tmp_path, "signed_sums.json")
    for _ in range(2):
        lists.sign(asked, [0, 1, 2])
    with pytest.raises(ProtocolError, match="signed another list of survivors for the sums of the inputs"):
        lists.sign(replace(asked, federation="g"), [0, 1])
    with pytest.raises(ProtocolError, match="so it signs none of another model for round -1"):
        lists.sign(replace(asked, model="another"), [0, 1])


def test_sums_do_not_leave_a_site_that_requires_masks_by_themselves(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch, 3, histograms=True, **CONSENT)
    assert "but site site0 does not tell the sums of its inputs" in refused(scaled(), capsys)
    asked = envelope.request("describe", client=0, statistics=True, histograms=True)
    info = envelope.opened(SERVERS["site0"].answer({"order": asked}), ("reply",))["info"]
    assert (info.moments, info.histograms) == (None, None)


def test_sites_without_consent_are_named_before_anything_is_added(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch, 3)
    assert "but site site0 does not tell the sums of its inputs. Its staff set 'policy.statistics'" in refused(
        scaled(**SECURE), capsys
    )
    claimed = SERVERS["site0"]._data.info
    monkeypatch.setattr(SERVERS["site0"]._data, "info", lambda *args: replace(claimed(*args), moments=()))
    with pytest.raises(Exception, match="This site does not tell the sums of its inputs, also not in a sum over sites"):
        SERVERS["site0"]._description.summand(SERVERS["site0"]._data)


def test_another_number_of_channels_is_named(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch, 3, **CONSENT)
    told = refused(scaled(features=7, **SECURE), capsys)
    assert "The server adds up 21 numbers of each client, but client" in told
    assert "has 18. The inputs of all need the same number of channels, which is 'model.network.num_features'" in told


# ---------------------------------------------------------------- a site that cheats


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda words: words + 2**61, "The sums of the inputs over all clients are impossible, so that one has sent something"),
        (lambda words: words[1:], "Before round 0: 2 of 3 clients delivered"),
        (lambda words: words.double(), "Before round 0: 2 of 3 clients delivered"),
        (lambda words: "words", "Before round 0: 2 of 3 clients delivered"),
    ],
)
def test_other_words_are_no_total(change, message, tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch, 3, **CONSENT)

    def hook(name: str, parts: Any, ask: Any) -> bytes:
        found = dict(envelope.opened(ask(), ("reply",)))
        if name == "site1" and "replies" in found:
            found["replies"] = [changed(one) for one in found["replies"]]
        return envelope.reply(**{key: value for key, value in found.items() if key not in ("kind", "version")})

    def changed(one: Any) -> Any:
        if isinstance(one, Note) and "words" in one.content:
            return replace(one, content={"words": change(one.content["words"])})
        return one

    HOOK["hook"] = hook
    assert message in refused(scaled(**SECURE), capsys)


# ---------------------------------------------------------------- few rows


def test_a_site_with_few_rows_adds_zeros_and_nobody_learns_that(tmp_path, monkeypatch, capsys):
    """Without masks it tells nothing, so that no site is measured."""
    prepare(tmp_path, monkeypatch, 3, secure_aggregation="allowed", min_count=15, **CONSENT)
    assert "but site site0 does not tell the sums" in refused(scaled(), capsys, "plain")
    final = federate(scaled(**SECURE), "masked")
    assert has_scale(final, tmp_path, ["site1", "site2"])


def test_channels_with_few_numbers_are_zero_in_the_sum():
    rows = torch.arange(60.0).reshape(20, 3)
    rows[4:, 1] = math.nan
    data = L.LightningDataModule.from_datasets(TensorDataset(rows, torch.zeros(20)), batch_size=8)
    site = SiteData(SiteSettings(datamodule=data))
    policy, exact = Policy(statistics=True, min_count=5), moments_of(rows)
    assert site.moments(policy) is None
    found = Moments.of_texts(site.moments(policy, summed=True) or ())
    assert found.counts == (20, 0, 20)
    assert found.totals == (exact.totals[0], 0, exact.totals[2])
    assert found.squares == (exact.squares[0], 0, exact.squares[2])
    assert Moments.of_texts(site.moments(replace(policy, min_count=4)) or ()) == exact
    few = Moments.of_texts(site.moments(replace(policy, min_count=21), summed=True) or ())
    assert few == Moments((0,) * 3, (0,) * 3, (0,) * 3)


def test_the_check_of_a_site_says_that_sums_leave_in_sums(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, 3, **CONSENT, histograms=True)
    said = site_check._data(Namespace(data="site1/data.yaml", name="site1", schema=None, folder=None))
    assert "once, the exact sums of its inputs and of their squares inside of a sum over sites; " in said
    assert "counts of bins" not in said
