"""How often a site takes part and with whom, the log of what has left it, and what its staff type."""

import hashlib
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asked_site import FEDERATION, NOISY, NOISY_STEPS, OTHER, ask, contract, model, named, noisy, north, order, sgd, told, work
from sites_over_bytes import WITNESS, audit, configuration, federate, of, prepare

from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.site.audit import AuditLog, read_log
from fl_lightning.flower.site.parent import main
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.store import SiteRecord, approve, digest_of, settings_of
from fl_lightning.flower.wire.serve import _check_database
from fl_lightning.messages import ClientTask, EvalOrder, Question

STATE = Path("north/state")
THREE = {"machine": {"trainings": 3}}


def command(capsys: Any, *words: str) -> str:
    """Return what a command of the staff prints."""
    main(["site", words[0], "--folder", str(STATE), *words[1:]])
    return str(capsys.readouterr().out)


# ---------------------------------------------------------------- how often


def test_a_site_trains_as_often_as_it_allows():
    """Under whatever session, round, period and federation a server asks, and after a restart of the site."""
    site = north(**THREE)
    for session in ("a", "a", "b"):  # the second request is answered from the store
        assert not told(work(site, session=session))
    site = north(**THREE)
    assert not told(work(site, order(period=1), session="b"))
    asks = [(order(period=2), "b", FEDERATION), (order(), "c", FEDERATION), (order(round_idx=1), "c", FEDERATION)]
    for asked, session, federation in (*asks, (order(), "c", OTHER)):
        said = told(work(site, asked, session=session, federation=federation))
        assert "This site has trained 3 times in all federations, and its 'policy.machine.trainings' is 3." in said


def test_trainings_inside_evaluations_count():
    site = north(tells=["examples", "evaluation/training"], machine={"trainings": 4})
    asked = EvalOrder(1, 0, "training", "evaluation", tasks=(ClientTask(0, 0), ClientTask(0, 1), ClientTask(0, 2)))
    assert "trainings" not in told(work(site, asked))
    assert "'policy.machine.trainings' is 4" in told(work(site, asked, session="t"))


def test_evaluations_of_a_federation_are_limited():
    """Under whatever session a server asks, after a restart of the site, and after its staff has agreed again."""
    evaluation, agreed = EvalOrder(1, 0, "training", "route"), {"answers": 3, "tells": ["examples", "evaluation/training"]}
    scored = {"route": named("FedStar")}
    site = north(**agreed)
    for _ in range(2):  # the second time from the store
        assert not told(work(site, evaluation, evaluation, **scored))
    site = north(**agreed)
    said = "This site has evaluated models 2 times in all federations, and its 'policy.answers' is 3. Periods of a"
    assert said in told(work(site, evaluation, evaluation, session="b", **scored))
    assert not told(work(site, evaluation, order(), session="b", **scored))
    SiteRecord(STATE, Policy()).withdraw(FEDERATION)
    approve(STATE, FEDERATION, settings_of(contract(**scored)))
    site = north(**agreed)
    assert not told(work(site, session="c", **scored))
    for federation in (FEDERATION, OTHER):
        assert "has evaluated models 3 times" in told(work(site, evaluation, session="d", federation=federation, **scored))


# ---------------------------------------------------------------- federations


def test_a_further_federation_needs_the_staffs_agreement():
    """40 new ids had trained 40 times, under a limit of rounds for each."""
    site, settings = north(federations=1), settings_of(contract())
    assert not told(ask(site, "prepare"))
    said = told(ask(site, "prepare", federation=OTHER))
    assert "This site's 'policy.federations' is 1, and it has taken part in 1." in said
    assert f"it runs: fl-lightning site approve --name north {OTHER} {digest_of(settings)}" in said
    approve(STATE, OTHER, settings)
    fewer = contract(local={"max_steps": 3})
    assert "has taken part in 1" in told(ask(site, "prepare", federation="e" * 32, contract=fewer))
    for federation, agreed in (("e" * 32, True), (OTHER, False), ("c" * 32, False), ("e" * 32, True)):
        said = told(ask(site, "prepare", federation=federation))  # each new fit has an id of its own
        assert bool(said) != agreed, federation
    assert not told(ask(north(), "prepare", federation="c" * 32))
    assert told(ask(north(federations=0), "prepare", federation="d" * 32))


def test_a_fit_that_the_site_refuses_is_not_one_in_which_it_took_part():
    site = north(federations=1)
    few = contract(local={"max_steps": 1})
    assert "min_rows" in told(ask(site, "prepare", federation=OTHER, contract=few))
    assert not told(ask(site, "prepare"))
    assert "it has taken part in 1." in told(ask(site, "prepare", federation=OTHER))


@pytest.mark.parametrize(
    ("changes", "agreed"),
    [
        ({"seed": 1}, False),
        ({"strategy": named("Scaffold")}, False),
        ({"local": {"threads": 1, "max_epochs": 9}}, False),
        ({"model": model(num_classes=4)}, False),
        ({"rounds": 50}, True),
        ({"num_clients": 4, "numbers": [0, 1, 2, 3]}, True),
        ({"threads": 2}, True),
    ],
)
def test_other_settings_under_a_known_id_need_agreement(changes, agreed):
    site = north(federations=5)
    assert not told(ask(site, "prepare"))
    said = told(ask(site, "prepare", contract=contract(**changes)))
    assert ("The settings of this federation have changed since this site agreed to them" in said) == (not agreed)
    if not agreed:
        approve(STATE, FEDERATION, settings_of(contract(**changes)))
        assert not told(ask(site, "prepare", contract=contract(**changes)))


def test_an_agreement_to_train_covers_evaluations_of_the_same_settings_and_not_the_reverse():
    """Unless the update leaves in masks: then no figure of this site alone leaves it."""
    tells = ["examples", "evaluation/training"]
    site, limits = north(federations=1, tells=tells), {"federations": 0, "tells": tells}
    assert not told(ask(site, "prepare"))
    for federation, settings in ((FEDERATION, {}), (OTHER, {"trains": False})):
        asked = contract(**settings)
        approve(STATE, federation, settings_of(asked))
        assert not told(ask(north(**limits), "prepare", federation=federation, contract=asked))
    site = north(**limits)
    assert not told(work(site, *questions(), trains=False))
    assert "to evaluate models, whose figures" in told(work(site, trains=False, seed=1))
    said = "RefusedError: This site has agreed to evaluate models alone, so it answers questions, and nothing else."
    evaluation = EvalOrder(1, 0, "training", "evaluation")
    for k, order_ in enumerate((order(), evaluation, replace(evaluation, tasks=(ClientTask(0, 0),)))):
        assert told(work(site, order_, federation=OTHER, trains=False, session=f"{k}")) == said
    assert "The server asks to train, and evaluate models; the" in told(work(site, federation=OTHER))


def questions() -> list[EvalOrder]:
    metric = of("torchmetrics.classification.MulticlassAccuracy", num_classes=3)
    return [EvalOrder(1, 0, "training", "question", question=Question(metric, 0, 0.95))]


def test_a_site_that_requires_masks_answers_questions_and_sends_nothing_else():
    masked: dict[str, Any] = {"update": {"masks": {"peers": "peers"}}}
    site = north(**masked, tells=["evaluation/training"])
    assert not told(work(site, *questions(), trains=False))
    assert "This site has agreed to evaluate models alone" in told(work(site, session="t", trains=False))
    assert "sends nothing but its part of a sum" in told(ask(north(**masked), "prepare"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "train, and evaluate models; the update leaves as it is"),
        (NOISY, "train, and evaluate models; the update leaves with noise of multiplier 50"),
        ({"local": NOISY_STEPS}, "train, and evaluate models; the update leaves with noise of multiplier 50"),
        ({"transforms": [noisy(noise="central")]}, "train, and evaluate models; the update leaves as it is"),
        ({"secure_aggregation": {}}, "train; the update leaves in masks, and no figure of this site alone"),
        ({"trains": False}, "evaluate models, whose figures for this site alone leave it; not to train"),
    ],
)
def test_an_agreement_names_what_it_covers(settings, words):
    assert json.loads(settings_of(contract(**settings)))["covers"] == words


@pytest.mark.parametrize("other", [False, [], "masks", 1])
def test_what_an_agreement_covers_is_what_the_settings_do(other):
    """A value that is no option was left out, after the staff had agreed to an update in masks."""
    asked = contract(secure_aggregation=other)
    assert "in masks" in json.loads(settings_of(asked))["covers"]
    found = told(ask(north(), "prepare", contract=asked))
    assert "The update would not leave as the settings say: train; the update leaves in masks" in found


@pytest.mark.parametrize("federations", [0, 1])
def test_settings_with_the_same_digest_are_others(federations, monkeypatch):
    """A server writes both texts, so it can search for two whose digests are equal: with 64 bits in half an hour."""
    monkeypatch.setattr("fl_lightning.flower.site.store.digest_of", lambda settings: "0" * 64)
    harmless, other = contract(), contract(model=model(optimizer=sgd(lr=1.0)))
    site = north(federations=federations)
    ask(site, "prepare", contract=harmless)
    approve(STATE, FEDERATION, settings_of(harmless))
    assert not told(ask(site, "prepare", contract=harmless))
    assert "have changed since this site agreed to them" in told(ask(site, "prepare", contract=other))


def test_the_staff_reads_the_difference_and_is_asked_before_it_agrees(capsys, monkeypatch):
    """It was agreed first and printed afterwards, whole: that masks were gone was one line among a hundred."""

    def answered(question: str) -> str:
        asked.append(question)
        if not answers:
            raise EOFError
        return answers.pop()

    monkeypatch.setattr("builtins.input", answered)
    asked: list[str] = []
    answers = ["yes", "", "no"]
    site = north(federations=1)
    assert not told(ask(site, "prepare"))
    changed = contract(local={"threads": 1, "max_epochs": 9})
    words = ("approve", *told(ask(site, "prepare", contract=changed)).partition("--name north ")[2].split())
    for _ in range(2):
        with pytest.raises(SystemExit):
            command(capsys, *words)
        shown = capsys.readouterr()
        assert "Not agreed, so nothing has changed." in shown.err
        assert '+      "max_epochs": 9,' in shown.out
        assert "ClassificationTask" not in shown.out
        assert "have changed" in told(ask(site, "prepare", contract=changed))
    assert f"Agreed to federation {FEDERATION}." in command(capsys, *words)
    assert not told(ask(site, "prepare", contract=changed))
    with pytest.raises(SystemExit):
        command(capsys, *words)
    assert "Run the command in a terminal, or pass '--yes'." in capsys.readouterr().err
    assert asked == ["Agree to them? [yes/no] "] * 4


def test_refused_settings_do_not_fill_the_disk():
    """The log stored the text of each before anything was checked: 100 messages of 200 kB took 20 MB."""
    site = north(federations=0)
    for k in range(40):
        long = contract(model=model(network=named("MLP", in_features=6, hidden=[1000 + k] * 10_000, num_classes=3)))
        assert "fl-lightning site approve" in told(ask(site, "prepare", contract=long, federation=f"{k:032x}"))
    assert sum(path.stat().st_size for path in STATE.rglob("*") if path.is_file()) < 2 * 2**20
    huge = contract(model=model(network=named("MLP", hidden=[9] * 600_000)))
    assert "characters, but a site reads at most 1048576." in told(ask(site, "prepare", contract=huge))


# ---------------------------------------------------------------- the log


def test_the_log_says_what_left():
    """Each message, the settings once, what was ordered, every number that left, and the update's tensors by shape."""
    site = north(tells=["examples", "loss", "evaluation/training"])
    ask(site, "describe")
    for session in "ab":
        work(site, order(), EvalOrder(1, 0, "training", "route"), session=session, route=named("FedStar"))
    lines = audit()
    assert read_log(STATE / "audit.jsonl") == (lines, [])
    assert {line["federation"] for line in lines} == {FEDERATION}
    assert all(len(line["sha256"]) == 64 for line in lines)
    assert [line["told"]["num_examples"] for line in lines if "told" in line] == [24]
    assert {line["model"] for line in lines if "model" in line} == {"fl_lightning.ClassificationTask"}
    (text,) = (line["text"] for line in lines if "text" in line)
    assert json.loads(text)["federation"]["local"]["threads"] == 1
    orders = [one for line in lines for one in line.get("orders", ())]
    assert [one.get("evaluate", "train") for one in orders] == ["train", "training"] * 2
    sent = [line for line in lines if "replies" in line]
    updates, reports = zip(*(line["replies"] for line in sent), strict=True)
    assert all(one["ClientUpdate"]["train_loss"] > 0 for one in updates)
    assert all(one["EvalReport"]["value"] > 0 for one in reports)
    assert [line["tensors"]["replies[0].model.vector"] for line in sent] == [["float32", 6 * 5 + 5 + 5 * 3 + 3]] * 2


def test_a_missing_or_changed_line_shows():
    path = Path("audit.jsonl")
    log = AuditLog(path)
    for k in range(3):
        log.record("out", "work", bytes([k]), ())
    AuditLog(path).record("in", "describe", b"", ())  # after a restart
    lines = path.read_bytes().splitlines()
    assert read_log(path)[1] == []
    assert json.loads(lines[1])["previous"] == hashlib.sha256(lines[0]).hexdigest()
    for changed, broken in (
        ([lines[0], lines[2], lines[3]], [2]),
        ([lines[0], lines[1].replace(b'"bytes": 1', b'"bytes": 9'), *lines[2:]], [3]),
        (lines[1:], [1]),
    ):
        path.write_bytes(b"\n".join(changed) + b"\n")
        assert read_log(path)[1] == broken
    path.write_bytes(b"\n".join(lines)[:-5])  # a full disk
    AuditLog(path).record("in", "describe", b"", ())
    assert read_log(path)[1] == []
    assert len(read_log(path)[0]) == 5


def test_a_log_that_is_written_anew_lacks_what_the_server_has_seen(capsys):
    """Whoever can write the file can make a chain without an update; the server's digests are out of his reach."""

    WITNESS.clear()
    prepare()
    federate(configuration())
    Path("witness.txt").write_text("\n".join(WITNESS["north"]))
    words = ("audit", "--witness", "witness.txt")
    said = command(capsys, *words)
    assert f"The log has all {len(WITNESS['north'])} lines of which the server has kept the digest." in said
    lines = [line for line in audit() if not any("ClientUpdate" in one for one in line.get("replies", ()))]
    assert len(lines) == len(audit()) - 3
    (STATE / "audit.jsonl").unlink()
    previous = "0" * 64
    with (STATE / "audit.jsonl").open("wb") as file:
        for line in lines:
            raw = json.dumps({**line, "previous": previous}).encode()
            previous = hashlib.sha256(raw).hexdigest()
            file.write(raw + b"\n")
    with pytest.raises(SystemExit, match="1"):
        command(capsys, *words)
    said = capsys.readouterr().out
    assert "the chain is complete." in said
    assert "The log LACKS " in said
    assert "lines of which the server has kept the digest, first that of line " in said
    Path("witness.txt").unlink()
    with pytest.raises(SystemExit):
        command(capsys, *words)
    assert "Cannot read 'witness.txt' (FileNotFoundError)." in capsys.readouterr().err


@pytest.mark.parametrize("left", [b'{"kind": "wo', b"5", b"null", b"\xff"])
def test_a_line_that_is_no_entry_is_named(left, capsys):
    """A half line counted as sound after a restart, so that a kill could hide a message; a number ended the command."""
    ask(north(), "prepare")
    with (STATE / "audit.jsonl").open("ab") as file:
        file.write(left)
    number = len((STATE / "audit.jsonl").read_bytes().splitlines())
    ask(north(), "prepare")
    said = command(capsys, "audit")
    assert "the chain is complete." in said
    assert f"Line {number} was cut off, by a kill or a full disk: which message it was is not known." in said


def test_the_digest_of_a_line_tells_nothing_of_it():
    """A server that knows all but a small number of a line could otherwise try the numbers."""
    for name in ("a.jsonl", "b.jsonl"):
        AuditLog(Path(name)).record("out", "work", b"", (), withheld=7)
    one, other = (json.loads(Path(name).read_text())["random"] for name in ("a.jsonl", "b.jsonl"))
    assert (one != other, len(bytes.fromhex(one))) == (True, 16)


def test_a_site_that_cannot_write_its_log_sends_only_a_code(monkeypatch):
    """A full disk: neither an update nor the text of an error leaves, and the server gets an answer."""
    said: list[str] = []
    site, whole, here = north(), open, str(Path.cwd())
    monkeypatch.setattr(site, "_print", said.append)

    def full(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if here in str(Path(path).resolve()) and ("a" in mode or "w" in mode):
            raise OSError(28, "No space left on device")
        return whole(path, mode, *args, **kwargs)

    monkeypatch.setattr("builtins.open", full)
    for reply in (ask(site, "describe"), ask(site, "prepare"), work(site)):
        assert set(reply) == {"kind", "version", "error"}
        assert told(reply).startswith("OSError (code ")
        assert "No space" not in told(reply)
    assert any("It cannot be written to errors.log: No space left on device." in line for line in said)


def test_text_of_a_server_cannot_control_the_sites_terminal(monkeypatch):
    said: list[str] = []
    site, evil = north(), "fl_lightning.\x1b[2J\nMLP\u202e"
    monkeypatch.setattr(site, "_print", said.append)
    reply = ask(site, "prepare", contract=contract(model={"class_path": evil}))
    for text in (told(reply), *said):
        assert "\x1b" not in text
        assert "\n" not in text
    assert any("fl_lightning.?[2J?MLP?" in text for text in said)

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise OSError(f"cannot read {evil}")

    monkeypatch.setattr(site._data, "client", fails)
    work(site)
    log = (STATE / "errors.log").read_text()
    assert "\x1b" not in log
    assert "cannot read fl_lightning.?[2J" in log


def test_a_library_that_ends_the_process_is_an_error_of_the_site(monkeypatch):
    def ends(*args: Any, **kwargs: Any) -> Any:
        raise SystemExit(2)

    site = north()
    monkeypatch.setattr(site._data, "info", ends)
    assert told(ask(site, "describe")).startswith("SystemExit (code ")


# ---------------------------------------------------------------- damaged files


@pytest.mark.parametrize("content", [b"", b"5", b"\xff\xfe"])
@pytest.mark.parametrize(
    ("name", "policy", "fix"),
    [
        ("record.json", {}, "Restore it from a copy: it counts how often this site has trained."),
        ("approved.json", {"federations": 0}, "Delete it: the staff then agrees again."),
        ("asked.json", {"federations": 0}, "Delete it: it has only what servers asked for."),
        ("federations/" + FEDERATION + "/state.bin", {}, "Restore it from a copy, or run 'fl-lightning site withdraw' for "),
    ],
)
def test_a_damaged_file_of_a_site_is_named_to_its_staff_alone(name, policy, fix, content, monkeypatch):
    """The server was told that its message was wrong, or of a JSONDecodeError."""
    assert not told(work(north()))
    (STATE / name).write_bytes(content)
    said: list[str] = []
    site = north(**policy)
    monkeypatch.setattr(site, "_print", said.append)
    reply = told(ask(site, "prepare", federation=FEDERATION if not policy else OTHER))
    assert reply.startswith("ConfigurationError (code ")
    assert "damaged" not in reply
    assert any(f"{name}' is damaged. {fix}" in line for line in said), said


def test_a_damaged_database_of_a_server_is_named():
    _check_database(Path("state.db"))
    with closing(sqlite3.connect("state.db")) as database:
        database.execute("CREATE TABLE kept (number)")
        database.executemany("INSERT INTO kept VALUES (?)", [(k,) for k in range(5000)])
        database.commit()
    _check_database(Path("state.db"))
    whole = Path("state.db").read_bytes()
    for broken in (b"no database at all, but long enough to have a header of 100 bytes" * 4, whole[:9000]):
        Path("state.db").write_bytes(broken)
        with pytest.raises(ConfigurationError, match=r"The file 'state.db' is damaged\. Restore it from a copy, or delete it"):
            _check_database(Path("state.db"))


# ---------------------------------------------------------------- what the staff types


def test_the_staff_approves_withdraws_and_reads_the_log(capsys):
    site = north(federations=0)
    words = told(work(site)).partition("fl-lightning site ")[2].split()
    assert words[:3] == ["approve", "--name", "north"]
    said = command(capsys, "approve", *words[3:], "--yes")
    assert said.startswith(f"The settings of federation {FEDERATION}:")
    assert '"class_path": "fl_lightning.ClassificationTask"' in said
    assert said.endswith(f"Agreed to federation {FEDERATION}.\n")
    for _ in range(2):
        assert not told(work(site))
    said = command(capsys, "audit")
    assert f"federation {FEDERATION}: " in said
    assert "messages; ordered 3 trainings, 0 evaluations" in said
    assert f"    settings: {words[4]}\n    model: fl_lightning.ClassificationTask\n" in said
    assert "    orders: train round 0, period 0\n" in said
    told_again = said.partition("    replies: ClientUpdate client 0, round_idx 0, num_examples 24, num_steps 3, train_loss ")[2]
    assert "    replies: ClientUpdate client 0, round_idx 0, num_examples 24" in told_again
    assert "    stored: True\n" in told_again
    assert "    tensor: replies[0].model.vector float32[" in told_again
    assert "error: RefusedError" in said
    assert "the chain is complete." in said
    assert "Deleted what this site kept for it." in command(capsys, "withdraw", FEDERATION)
    assert not (STATE / "federations" / FEDERATION).exists()
    assert "has withdrawn" in told(work(site, order(round_idx=1)))  # at once
    assert "has withdrawn" in told(work(north(federations=0)))
    assert "in which this site had not taken part." in command(capsys, "withdraw", OTHER)
    assert "This site has withdrawn from this federation on " in told(ask(north(), "prepare", federation=OTHER))
    log = STATE / "audit.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"num_steps": 3', b'"num_steps": 9', 1))
    with pytest.raises(SystemExit, match="1"):
        command(capsys, "audit", "--federation", OTHER)
    assert "the chain is BROKEN before the lines " in capsys.readouterr().out
