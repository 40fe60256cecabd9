"""Sites and servers that crash, are away or come back: nothing is trained twice, and the others' bits stay."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sites_over_bytes as net

import fl_lightning
from fl_lightning.flower import envelope

SCAFFOLD = {"strategy": "Scaffold", "clients_per_round": 2}
SKIP = {"faults": {"policy": "skip"}}
ENOUGH = ("--federation.pool.min_sites", "2")
LAST = ("--ckpt_path", "last", "--federation.checkpoints.resume_changed", "true")


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_everything_dies_and_starts_again(after):
    """Server and sites are killed before or after a checkpoint; each site knows its c_k of the right round."""
    net.prepare()
    config = net.configuration(6, **SCAFFOLD)
    whole = net.simulate(config)
    crash = net.of("sites_over_bytes.Crash", round_idx=3, after=after)
    with pytest.raises(SystemExit, match="killed"):
        net.federate({**config, "trainer": {**config["trainer"], "callbacks": [crash]}})
    net.restart()
    assert net.same_bits(whole, net.federate(config, "real", "--ckpt_path", "last"))


def test_a_repeated_order_is_answered_from_the_store():
    net.prepare()
    config, answered = net.configuration(**SCAFFOLD), []

    def twice(name, parts, ask):
        first = ask()
        if b'"orders"' in parts["order"]:
            net.start_site(Path(), name)  # it died after it had trained
            said: list[str] = []
            net.SERVERS[name]._say = said.append  # type: ignore[method-assign]
            answered.append((ask() == first, "Answered a repeated order from the store." in said))
        return first

    whole = net.simulate(config)
    net.HOOK["hook"] = twice
    assert net.same_bits(whole, net.federate(config))
    assert len(answered) >= 3 * 2
    assert set(answered) == {(True, True)}


@pytest.mark.slow
def test_an_update_that_was_not_used_leaves_no_trace_at_its_site():
    """A site that trained, and whose reply was lost, must go on like one that never got the order."""
    here, results = Path.cwd(), []

    def drop(ask: Callable[[], bytes]) -> bytes | None:
        if len(asked) != 2:
            return ask()
        if trains:
            ask()
            net.start_site(Path(), "south")
        return None

    for trains in (False, True):
        net.prepare(here / str(trains))
        asked = net.disturb("south", drop)
        with pytest.warns(UserWarning, match="Round 1 continues without client south: no answer within its deadline"):
            results.append(net.federate(net.configuration(4, strategy="Scaffold", **SKIP)))
        assert len(asked) == 4
    assert net.same_bits(*results)


@pytest.mark.slow
def test_a_site_that_lacks_a_version_says_so():
    """A copy of an old checkpoint, after the sites have dropped the state of its round."""
    net.prepare()
    config = net.configuration(5, strategy="Scaffold")
    net.federate({**config, "trainer": {**config["trainer"], "callbacks": [net.of("sites_over_bytes.Copy", round_idx=1)]}})
    said = net.refused(config, "other", "--ckpt_path", "early.ckpt")
    assert "The server restarts at round 2, but this client only has the state for round 5" in said


# ---------------------------------------------------------------- sites that come and go


@pytest.mark.slow
@pytest.mark.parametrize("seen", [True, False], ids=["seen before", "never seen"])
def test_a_fit_starts_without_an_absent_site_which_takes_part_later(seen):
    """The others' rounds are those of a run in which the site never answers, and after its return those of all sites."""
    net.prepare()
    config = net.configuration(**SKIP)
    net.disturb("south")
    with pytest.warns(UserWarning, match="without client south"):
        silent = net.federate(config, "silent")
    assert Path("silent/failures.csv").read_text().count("no answer within its deadline") == 3
    net.HOOK.clear()
    if not seen:
        net.TOLD.clear()
    net.ABSENT.add("south")
    net.restart("north", "west")
    with pytest.warns(UserWarning, match=r"The fit starts without site south \(client 1\): it is offline"):
        assert net.same_bits(silent, net.federate(config, "absent", *ENOUGH))
    failures = Path("absent/failures.csv").read_text()
    assert failures.count("it is offline" if seen else "the server does not know its data yet") == 3
    net.ABSENT.clear()
    net.federate(net.configuration(4, **SKIP), "absent", *ENOUGH, *LAST)
    assert Path("absent/failures.csv").read_text() == failures


@pytest.mark.slow
def test_a_chain_passes_an_absent_site():
    net.prepare(tells=[*net.TELLS, "label_counts"])
    config = net.configuration(route={"class_path": "Mediators", "init_args": {"clients_per_mediator": 3}}, **SKIP)
    net.disturb("south")
    with pytest.warns(UserWarning, match="without client south"):
        silent = net.federate(config, "silent")
    net.HOOK.clear()
    net.ABSENT.add("south")
    with pytest.warns(UserWarning, match="without client south: it is offline"):
        assert net.same_bits(silent, net.federate(config, "absent", *ENOUGH))


@pytest.mark.slow
def test_numbers_belong_to_their_sites_also_after_a_resume():
    net.prepare()
    net.federate(net.configuration(1))
    net.REGISTERED[:] = ["south", "north", "west"]
    said = net.refused(net.configuration(2), "real", *LAST)
    assert re.search(r"'site 0' 'north with \d+ examples', but this run has 'south with", said)
    assert "Sites keep their numbers in the folder of 'fl-lightning serve'." in said
    net.REGISTERED[:] = ["north", "south"]
    said = net.refused(net.configuration(2), "real", *LAST)
    assert re.search(r"'site 2' 'west with \d+ examples', but this run has 'nothing'", said)


@pytest.mark.slow
def test_a_site_joins_a_run_with_the_next_number():
    """The others keep their numbers, and so their random numbers."""
    net.prepare()
    for strategy in ("FedAvg", "Scaffold"):
        net.REGISTERED[:] = net.NAMES[:2]
        net.federate(net.configuration(1, strategy=strategy), strategy)
        net.REGISTERED[:] = net.NAMES
        more = net.configuration(2, strategy=strategy), strategy, *LAST
        if strategy == "FedAvg":
            net.federate(*more)
        else:
            said = net.refused(*more)
            assert "'site 2' 'nothing', but this run has 'west with" in said
            assert "With 'federation.strategy' Scaffold, all sites must take part from the first round on." in said
        net.restart()


@pytest.mark.slow
def test_a_site_that_restarts_while_a_fit_starts_is_asked_again():
    net.prepare()
    lost: list[bytes] = []

    def lose(name: str, parts: Any, ask: Callable[[], bytes]) -> bytes | None:
        if name == "south" and parts["order"] not in lost and b'"ClientTask"' not in parts["order"]:
            lost.append(parts["order"])
            return None
        return ask()

    net.HOOK["hook"] = lose
    assert net.same_bits(net.federate(net.configuration(1)), net.simulate(net.configuration(1)))
    assert len(lost) >= 2  # the description and the settings
    net.HOOK["hook"] = lambda name, parts, ask: None if name == "south" else ask()
    said = net.refused(net.configuration(), "never")
    assert "Some sites cannot take part. Site south (client 1): no answer within its deadline" in said


# ---------------------------------------------------------------- faults


@pytest.mark.slow
def test_an_error_at_a_site_is_told_by_class_and_code():
    net.prepare()

    def fails(*args, **kwargs):
        raise OSError("patient 4711 has a broken record")

    net.SERVERS["south"]._data.client = fails  # type: ignore[method-assign]
    said = net.refused(net.configuration())
    assert "Site south (client 1): OSError (code " in said
    assert "4711" not in said
    assert "patient 4711" in Path("south/state/errors.log").read_text()
    with pytest.warns(UserWarning, match=r"without client south.*OSError \(code"):
        net.federate(net.configuration(**SKIP), "skipped")


def test_a_server_of_another_minor_version_is_refused_with_both(monkeypatch):
    net.prepare()
    told = envelope.opened

    def older(content, kinds):
        return told(content.replace(f'"version": "{fl_lightning.__version__}"'.encode(), b'"version": "9.9.0"'), kinds)

    monkeypatch.setattr(envelope, "opened", older)
    said = net.refused(net.configuration())
    assert "9.9.0" in said
    assert fl_lightning.__version__ in said
