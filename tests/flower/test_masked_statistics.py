"""Sites measure their inputs by sums that only open as totals: the bits without masks, and what a server cannot have."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import pytest
import sites_over_bytes as net
import torch
from masked_sites import FIRST, REST, SECURE, SKIP, Killed, cheating, masked, masks, note_with, refuses, step_of, steps_of
from torch.utils.data import TensorDataset

from fl_lightning.errors import ProtocolError
from fl_lightning.flower import envelope
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.recipe import RefusedError
from fl_lightning.flower.site.settings import SiteSettings
from fl_lightning.functional.exact_moments import Moments, moments_of
from fl_lightning.messages import Note
from fl_lightning.options.secure_aggregation.description import RoundDescription
from fl_lightning.options.secure_aggregation.record import SignedLists


def consenting(sites: int = 3, **policy: Any) -> None:
    masked(sites, **{"tells": ["examples", "steps", "loss", "statistics"], **policy})


def has_scale(final: dict[str, Any], names: Any) -> bool:
    """Return whether a model has mean and deviation of these sites' rows, as float32 of sums that ``math.fsum`` rounds once."""
    read = [np.loadtxt(Path(name, "own.csv"), delimiter=",", skiprows=1)[:, :6] for name in names]
    rows = np.concatenate(read).astype(np.float32).astype(float)
    means = [math.fsum(column) / len(rows) for column in rows.T]
    deviations = [math.sqrt(math.fsum((column - mean) ** 2) / len(rows)) for column, mean in zip(rows.T, means, strict=True)]
    found = [tensor for kind in ("mean", "std") for name, tensor in final.items() if name.endswith(f"network.{kind}")]
    return all(map(torch.equal, found, map(torch.tensor, (means, deviations))))


# ---------------------------------------------------------------- the bits of the run without masks


@pytest.mark.slow
@pytest.mark.filterwarnings("error:Standardized has not been measured")
@pytest.mark.parametrize("strategy", net.slow_but(["FedAvg", "Scaffold"], "FedAvg"))
def test_three_sites_have_the_scale_and_the_bits_of_the_run_without_masks(strategy):
    """No reply has a site's sums, and the keys and shares of round 0 travel with the last two steps before it."""
    consenting()
    steps: list[str] = []
    told: list[Any] = []

    def keep(name: str, parts: Any, ask: Any) -> bytes:
        steps.extend([step_of(parts)[0]] if name == "site1" else [])
        reply = ask()
        told.append(envelope.opened(reply, ("reply",)))
        return reply  # type: ignore[no-any-return]

    net.HOOK["hook"] = keep
    found = net.federate(net.scaled(2, strategy=strategy, **SECURE))
    assert net.same_bits(found, net.simulate(net.scaled(2, strategy=strategy)))
    assert net.same_bits(found, net.simulate(net.scaled(2, strategy=strategy, **SECURE), "masked simulation"))
    assert has_scale(found, net.REGISTERED)
    assert [step for step in steps if step] == [*FIRST, *REST, *REST, *REST]
    assert {reply["info"].moments for reply in told if "info" in reply} == {()}
    notes = [one for reply in told for one in reply.get("replies", ()) if isinstance(one, Note)]
    words = [note.content["words"] for note in notes if "words" in note.content]
    assert [len(one) for one in words] == [3 * 6 * 11] * 3
    assert all(len(set(one.tolist())) == len(one) for one in words)  # the words of small numbers would be 0 and -1


@pytest.mark.parametrize(("step", "after"), net.slow_but([("update", False), ("open", True)], ("update", False)))
def test_a_site_that_dies_leaves_the_scale_of_those_who_delivered(step, after):
    """Of four sites, one dies before the first round, and the others train."""
    consenting(4)
    net.HOOK["hook"] = Killed("site2", step, after, in_round=1)
    delivered = step in ("list", "open") or after
    assert has_scale(net.federate(net.scaled(**SECURE, **SKIP)), net.REGISTERED if delivered else ["site0", "site1", "site3"])


@pytest.mark.slow
def test_sites_whose_last_answer_before_round_0_got_lost_announce_new_keys():
    """The total is opened without the shares of one of four, and no site is lost in round 0."""
    consenting(4)
    steps = steps_of("site1", lambda step, ask: None if step == "open" and steps.count("open") == 1 else ask())
    assert net.same_bits(net.federate(net.scaled(**SECURE, **SKIP)), net.simulate(net.scaled()))
    assert steps == [*FIRST, *REST, *FIRST, *REST]


# ---------------------------------------------------------------- a server that cheats


@pytest.mark.slow
def test_a_second_total_has_the_same_list_in_whatever_federation():
    """The same list tells nothing new; the difference of two lists would be one site's sums."""
    consenting(4, lost=1)
    one, other = (net.federate(net.scaled(**SECURE, **SKIP), folder) for folder in ("first", "again"))
    assert net.same_bits(one, other)
    net.ABSENT.add("site3")
    more = ("--federation.pool.min_sites", "3")
    told = net.refused(net.scaled(**SECURE, **SKIP), "third", *more)
    assert "Before round 0: 0 of 4 clients have signed the list of survivors" in told
    message = "This site has signed another list of survivors for the sums of the inputs, and the difference of two totals"
    assert sum(message in line for line in net.LINES) == 3
    for name in net.REGISTERED[:3]:
        Path(name, "state", "signed_sums.json").unlink()
    config = net.scaled(**SECURE, **SKIP) | {"seed_everything": 1}  # another model, for which no list has been signed
    assert has_scale(net.federate(config, "fourth", *more), net.REGISTERED[:3])


@pytest.mark.slow
def test_sums_of_data_that_have_changed_are_not_added():
    consenting()
    net.federate(net.scaled(**SECURE), "first")
    path = Path("site1/own.csv")
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    net.restart("site1")
    assert refuses(net.scaled(**SECURE), "The data of this site have changed since it told the sums of its inputs", "site1")


OTHER_SUMS = "The list of sums that this site got differs from the one that all sites"
ATTACKS: dict[str, tuple[Any, str]] = {
    "a list of two": (
        note_with("list", delivered=lambda d: [0, 1]),
        "The updates of 2 sites would be added, but this site's 'policy.update.masks.least' is 3",
    ),
    "another question": (note_with("update", description=lambda d: {**d, "sizes": {"sums of the inputs": 15}}), OTHER_SUMS),
    "the numbers as those of a round": (
        note_with("update", description=lambda d: {**d, "round_idx": 0}),
        "The round under masks is not the one for which this client has announced keys",
    ),
}


@pytest.mark.parametrize("attack", net.slow_but(ATTACKS, "a list of two", "another question"))
def test_a_server_that_cheats_a_site_gets_no_sums_of_it(attack):
    consenting()
    change, message = ATTACKS[attack]
    cheating("site0", change)
    assert refuses(net.scaled(**SECURE), message, "site0"), net.LINES


@pytest.mark.slow
@pytest.mark.parametrize("lie", net.slow_but([{"model": "0" * 64}, {"sizes": {"numbers": 18}}], {"model": "0" * 64}))
def test_a_question_that_sites_do_not_know_is_refused(lie, monkeypatch):
    """Each question has one list, so a server must not have several for the same numbers."""
    consenting()
    plain = RoundDescription.plain
    monkeypatch.setattr(RoundDescription, "plain", lambda self: plain(replace(self, **lie)))
    assert refuses(net.scaled(**SECURE), OTHER_SUMS), net.LINES


def test_a_second_question_of_a_federation_is_not_signed():
    """All sites have six channels, so that no other one could be answered; it is refused by itself."""
    sites = ((0, "a"), (1, "b"), (2, "c"))
    asked = RoundDescription("f", "c", "s", -1, sites, 0.67, "question", "", {"sums of the inputs": 18}, {})
    lists = SignedLists(Path(), "signed_sums.json")
    for _ in range(2):
        lists.sign(asked, [0, 1, 2])
    with pytest.raises(ProtocolError, match="signed another list of survivors for the sums of the inputs"):
        lists.sign(replace(asked, federation="g"), [0, 1])
    with pytest.raises(ProtocolError, match="so it signs none of another model for round -1"):
        lists.sign(replace(asked, model="another"), [0, 1])


def test_sums_do_not_leave_a_site_that_requires_masks_by_themselves():
    consenting()
    assert "but site site0 does not tell the sums of its inputs" in net.refused(net.scaled())
    asked = envelope.request("describe", client=0, statistics=True)
    info = envelope.opened(net.SERVERS["site0"].answer({"order": asked}), ("reply",))["info"]
    assert info.moments is None


def test_sites_without_consent_are_named_before_anything_is_added(monkeypatch):
    masked()
    said = net.refused(net.scaled(**SECURE))
    assert "but site site0 does not tell the sums of its inputs. If its staff agrees, they add 'statistics' to" in said
    claimed = net.SERVERS["site0"]._data.info
    monkeypatch.setattr(net.SERVERS["site0"]._data, "info", lambda *args: replace(claimed(*args), moments=()))
    site = net.SERVERS["site0"]
    with pytest.raises(RefusedError, match="This site does not tell the sums of its inputs, also not in a sum over sites"):
        site._summand()


@pytest.mark.slow
def test_another_number_of_channels_is_named():
    consenting()
    told = net.refused(net.scaled(features=7, **SECURE))
    assert "The server adds up 21 numbers of each client, but client" in told
    assert "has 18. The inputs of all need the same number of channels, which is 'model.network.num_features'" in told


# ---------------------------------------------------------------- a site that cheats

LOST = "Before round 0: 2 of 3 clients delivered"
IMPOSSIBLE = "The sums of the inputs over all clients are impossible, so that one has sent something"
WORDS: dict[str, tuple[Any, str]] = {
    "too large": (lambda words: words + 2**61, IMPOSSIBLE),
    "too few": (lambda words: words[1:], LOST),
    "another type": (lambda words: words.double(), LOST),
    "text": (lambda words: "words", LOST),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", net.slow_but(WORDS, "too large", "too few"))
def test_other_words_are_no_total(case):
    consenting()
    change, message = WORDS[case]

    def lie(one: Any) -> Any:
        if isinstance(one, Note) and "words" in one.content:
            return replace(one, content={"words": change(one.content["words"])})
        return one

    net.lying("site1", lie)
    assert message in net.refused(net.scaled(**SECURE))


# ---------------------------------------------------------------- few rows


@pytest.mark.slow
def test_a_site_with_few_rows_adds_zeros_and_nobody_learns_that():
    """One patient has 5 of 12 rows, so a sum must have 25. Without masks it tells nothing, so that no site is measured."""
    consenting(update="plain", min_rows=5)
    own = pd.read_csv("site0/own.csv").assign(patient=[0] * 5 + [*range(1, 8)])
    own.to_csv("site0/own.csv", index=False)
    net.restart("site0", datamodule=net.table(str(Path("site0/own.csv").resolve()), person_column="patient"))
    assert "but site site0 does not tell the sums" in net.refused(net.scaled(), "plain")
    net.restart(limits={"update": masks()})
    assert has_scale(net.federate(net.scaled(**SECURE), "masked"), ["site1", "site2"])


def test_channels_with_few_numbers_are_zero_in_the_sum():
    rows = torch.arange(60.0).reshape(20, 3)
    rows[4:, 1] = math.nan
    data = L.LightningDataModule.from_datasets(TensorDataset(rows, torch.zeros(20)), batch_size=8)
    site = SiteData(SiteSettings(datamodule=data))
    policy, exact = Policy(tells=["statistics"], min_rows=5), moments_of(rows)
    assert site.moments(policy) is None
    found = Moments.of_texts(site.moments(policy, summed=True) or ())
    assert found.counts == (20, 0, 20)
    assert found.totals == (exact.totals[0], 0, exact.totals[2])
    assert found.squares == (exact.squares[0], 0, exact.squares[2])
    assert Moments.of_texts(site.moments(replace(policy, min_rows=4)) or ()) == exact
    few = Moments.of_texts(site.moments(replace(policy, min_rows=21), summed=True) or ())
    assert few == Moments((0,) * 3, (0,) * 3, (0,) * 3)
