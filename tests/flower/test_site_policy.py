"""What a site's policy lets leave, how often and with whom, and the log of what has left."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from sites_over_bytes import NAMES, configuration, federate, prepare, start_site, table
from test_site_security import (
    FEDERATION,
    MODEL,
    NOISY_STEPS,
    again,
    ask,
    contract,
    noisy,
    order,
    server_model,
    site,  # noqa: F401 (a fixture)
    with_policy,
    work,
)

import fl_lightning
from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.accepted_classes import NOT_ACCEPTED, PARTS, default_classes
from fl_lightning.flower.audit import AuditLog, read_log
from fl_lightning.flower.policy import Policy
from fl_lightning.flower.site_record import SiteRecord, approve, digest_of
from fl_lightning.messages import EvalOrder, EvalReport
from fl_lightning.types import ClientFailure


def told(reply: dict[str, Any]) -> str:
    return str(reply.get("error", ""))


# ---------------------------------------------------------------- classes


def test_every_public_class_was_looked_at():
    """A new one is on one of the two lists, by hand."""
    public: dict[str, str] = vars(fl_lightning)["_NAMES"]
    every = {name for part in PARTS for name in public[part].split()}
    accepted = {path.rpartition(".")[2] for path in default_classes() if path.startswith("fl_lightning.")}
    settings = {
        "Asynchronous",
        "ClientEvaluation",
        "ClientPrivacy",
        "ExamplePrivacy",
        "Faults",
        "LocalTraining",
        "PartialWork",
        "SecureAggregation",
    }
    assert accepted - settings | set(NOT_ACCEPTED) == every
    assert not accepted & set(NOT_ACCEPTED)
    assert settings <= accepted


KMEANS = {"class_path": "fl_lightning.KMeansTask", "init_args": {"num_clusters": 2000, "in_features": 6}}


@pytest.mark.parametrize("listed", [False, True])
def test_k_means_does_not_return_rows(listed, site, tmp_path):  # noqa: F811
    """One order with 2,000 centroids had returned 60 of 60 rows. A site that lists the classes is still not asked for them."""
    classes = ["fl_lightning.KMeansTask", "fl_lightning.FederatedKMeans"] if listed else []
    site = with_policy(tmp_path, classes=classes)
    strategy = {"class_path": "fl_lightning.FederatedKMeans", "init_args": {}}
    said = told(ask(site, "prepare", contract=contract(model=KMEANS if not listed else MODEL, strategy=strategy)))
    if listed:
        assert "Sites do not do this for any server: federation.strategy: FederatedKMeans." in said
    else:
        assert "'fl_lightning.KMeansTask', which this site does not accept" in said


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"strategy": {"class_path": "fl_lightning.Focus"}}, "Focus"),
        ({"route": {"class_path": "fl_lightning.Mocha"}}, "Mocha"),
        ({"transforms": [{**noisy(), "init_args": {**noisy()["init_args"], "noise_seed": 3}}]}, "noise_seed"),
        ({"local": {**NOISY_STEPS, "privacy": {**NOISY_STEPS["privacy"], "noise_seed": 3}}}, "noise_seed"),
    ],
)
def test_refusals_that_protect_a_site_run_at_the_site(settings, named, site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, classes=["fl_lightning.Focus", "fl_lightning.Mocha"])
    said = told(ask(site, "prepare", contract=contract(**settings)))
    assert "Sites do not do this for any server: " in said
    assert named in said


def test_a_site_may_name_the_models(site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, models=["fl_lightning.ClassificationTask", "fl_lightning.LeNet"])
    assert "'fl_lightning.MLP', which this site does not accept" in told(ask(site, "prepare"))
    site = with_policy(tmp_path, models=["fl_lightning.ClassificationTask", "fl_lightning.MLP"])
    assert not told(ask(site, "prepare"))


# ---------------------------------------------------------------- noise covers everything


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_with_a_required_noise_no_figure_leaves(noise, site, tmp_path):  # noqa: F811
    """With a rate of 1e-30, the exact loss was a counting query per round."""
    site = with_policy(tmp_path, min_noise=noise, evaluations=["training", "validation", "test"])
    (update,) = again(site, "s", order(), transforms=[noisy()])["replies"]
    assert (update.train_loss is None) == (noise > 0)
    assert (not update.metrics) == (noise > 0)
    assert (update.seconds == 0) == (noise > 0)
    asked = again(site, "s", EvalOrder(1, 0, "training", "evaluation"), transforms=[noisy()])
    assert ("does not allow evaluation" in told(asked)) == (noise > 0)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"client_evaluation": {"every_n_rounds": 1}}, "'federation.client_evaluation' evaluates"),
        ({"route": {"class_path": "fl_lightning.FedStar"}}, "'federation.route' is FedStar"),
        ({"strategy": {"class_path": "fl_lightning.QFedAvg"}}, "QFedAvg reads metrics"),
    ],
)
def test_with_a_required_noise_nothing_is_evaluated(settings, named, site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, min_noise=1.0, evaluations=["training", "validation", "test"])
    assert named in told(ask(site, "prepare", contract=contract(**{"transforms": [noisy()], **settings})))


# ---------------------------------------------------------------- limits of work


@pytest.mark.parametrize(
    ("policy", "local", "job", "said"),
    [
        ({}, {"max_epochs": 10**9}, {}, "has 1e+09 epochs, but this site's 'policy.max_epochs' is 100"),
        ({"max_epochs": 3}, {"max_epochs": 4}, {}, "has 4 epochs"),
        ({"max_epochs": 3}, {"max_epochs": -1, "max_steps": 10}, {}, "has 3.33333 epochs"),
        ({"min_steps": 4}, {}, {}, "has 3 steps, but this site's 'policy.min_steps' is 4"),
        ({"min_steps": 2}, {"full_batch": True}, {}, "has 1 steps"),
        ({"min_steps": 3}, {"limit_train_batches": 2}, {}, "has 2 steps"),
        ({}, {}, {"epochs": 0}, "has 0 steps"),
        ({"min_steps": 3}, {}, {"slowness": 2.0}, "has 1.5 steps"),
        ({"min_batch": 9}, {}, {}, "A batch may have fewer rows or persons than this site's 'policy.min_batch' of 9"),
        ({"min_batch": 24}, {"full_batch": True}, {}, ""),
        ({"min_batch": 8, "min_steps": 3, "max_epochs": 1}, {}, {}, ""),
        ({"max_epochs": 4}, {"max_epochs": -1, "max_steps": 10}, {}, ""),
    ],
)
def test_turns_are_within_the_policy(policy, local, job, said, site, tmp_path):  # noqa: F811
    """The site has 24 rows and batches of 8."""
    site = with_policy(tmp_path, **policy)
    reply = again(site, "s", order(**job), local={"threads": 1, **local})
    assert said in told(reply) if said else not told(reply)


def test_the_smallest_batch_counts(tmp_path, monkeypatch):
    """A last batch of 4 rows, and persons with several rows."""
    prepare(tmp_path, monkeypatch)
    own = table(str(tmp_path / "north" / "own.csv"), batch_size=10)
    path = tmp_path / "north" / "data.yaml"
    path.write_text(yaml.safe_dump({"datamodule": own, "device": "cpu", "policy": {"min_batch": 5}}))
    said = "A batch may have fewer rows or persons"
    assert said in told(work(start_site(tmp_path, "north"), order()))
    rows = (tmp_path / "north" / "own.csv").read_text().splitlines()
    named = [f"patient,{rows[0]}", *(f"p{k // 3},{row}" for k, row in enumerate(rows[1:]))]
    (tmp_path / "north" / "own.csv").write_text("\n".join(named) + "\n")
    own["init_args"] |= {"batch_size": 12, "person_column": "patient"}
    path.write_text(yaml.safe_dump({"datamodule": own, "device": "cpu", "policy": {"min_batch": 5}}))
    assert said in told(work(start_site(tmp_path, "north"), order()))


def test_alone_training_in_evaluations_is_limited(site, tmp_path):  # noqa: F811
    from fl_lightning.messages import ClientTask

    site = with_policy(tmp_path, evaluations=["test"], max_epochs=5)
    asked = EvalOrder(1, 0, "test", "evaluation", tasks=(ClientTask(0, 0),), epochs=10**6)
    assert "has 1e+06 epochs" in told(work(site, asked))


def test_threads_and_models_are_within_the_policy(site, tmp_path, monkeypatch):  # noqa: F811
    site = with_policy(tmp_path, max_threads=2)
    assert "'threads' is 1024, but this site allows 1 to 2" in told(ask(site, "prepare", contract=contract(threads=1024)))
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert Policy().most_threads == 3
    large = {"class_path": "fl_lightning.MLP", "init_args": {"in_features": 6, "hidden": [30_000, 30_000], "num_classes": 3}}
    model = {**MODEL, "init_args": {**MODEL["init_args"], "network": large}}
    allocated: list[int] = []
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", lambda own: allocated.append(own.weight.device.type == "cpu"))
    assert "The model has 3434 MiB, but this site allows 2048 MiB." in told(
        ask(site, "prepare", contract=contract(model=model))
    )
    assert allocated
    assert not any(allocated)


def test_a_turn_ends_at_the_sites_own_deadline(site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, max_seconds=1e-9)
    assert told(work(site, order())).startswith("ClientError (code ")
    assert "policy.max_seconds" in (tmp_path / "north" / "state" / "errors.log").read_text()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_rounds": 0}, "'policy.max_rounds' must be 1 or above"),
        ({"max_total_rounds": 0}, "'policy.max_total_rounds'"),
        ({"max_epochs": 0}, "'policy.max_epochs'"),
        ({"max_evaluations": 0}, "'policy.max_evaluations'"),
        ({"min_steps": 0}, "'policy.min_steps'"),
        ({"min_batch": 0}, "'policy.min_batch'"),
        ({"max_seconds": 0.0}, "'policy.max_seconds' must be above 0, in seconds"),
        ({"max_model": -1.0}, "'policy.max_model' must be above 0, in MiB"),
        ({"largest_message": 0.0}, "'policy.largest_message'"),
        ({"federations": -1}, "'policy.federations' must be any, or a number of 0 or above"),
        ({"federations": "all"}, "'policy.federations'"),
        ({"max_threads": 0}, "'policy.max_threads'"),
        ({"min_noise": -1.0}, "'policy.min_noise'"),
        ({"evaluations": ["all"]}, "'policy.evaluations'"),
    ],
)
def test_wrong_policies_are_named(settings, said):
    with pytest.raises(ConfigurationError, match=said):
        Policy(**settings)


# ---------------------------------------------------------------- federations

OTHER = "b" * 32


def test_a_further_federation_needs_the_staffs_agreement(site, tmp_path):  # noqa: F811
    """40 new ids had trained 40 times, under a limit of rounds for each."""
    site = with_policy(tmp_path, federations=1)
    assert not told(ask(site, "prepare"))
    digest = digest_of(contract())
    said = told(ask(site, "prepare", federation=OTHER))
    assert "This site's 'policy.federations' is 1, and it has taken part in 1." in said
    assert f"it runs: fl-lightning site approve --name north {OTHER} {digest}" in said
    approve(tmp_path / "north" / "state", f"{OTHER} {digest}")
    assert not told(ask(site, "prepare", federation=OTHER))
    assert told(ask(site, "prepare", federation="c" * 32))
    assert not told(ask(with_policy(tmp_path, federations="any"), "prepare", federation="c" * 32))
    assert told(ask(with_policy(tmp_path, federations=0), "prepare", federation="d" * 32))


@pytest.mark.parametrize(
    ("changes", "agreed"),
    [
        ({"seed": 1}, False),
        ({"strategy": {"class_path": "fl_lightning.Scaffold", "init_args": {}}}, False),
        ({"local": {"threads": 1, "max_epochs": 9}}, False),
        ({"model": {**MODEL, "init_args": {**MODEL["init_args"], "num_classes": 4}}}, False),
        ({"rounds": 50}, True),
        ({"num_clients": 4, "numbers": [0, 1, 2, 3]}, True),
        ({"threads": 2}, True),
    ],
)
def test_other_settings_under_a_known_id_need_agreement(changes, agreed, site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, federations=5, max_threads=4)
    assert not told(ask(site, "prepare"))
    said = told(ask(site, "prepare", contract=contract(**changes)))
    assert ("The settings of this federation have changed since this site agreed to them" in said) == (not agreed)
    if not agreed:
        approve(tmp_path / "north" / "state", f"{FEDERATION} {digest_of(contract(**changes))}")
        assert not told(ask(site, "prepare", contract=contract(**changes)))


def test_rounds_of_all_federations_together_are_limited(site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, max_total_rounds=3, federations="any")
    for k in range(3):
        assert not told(ask(site, "work", parts(), federation=f"{k}" * 32, **asked()))
    said = told(ask(site, "work", parts(), federation="9" * 32, **asked()))
    assert "This site has trained 3 times in all federations, and its 'policy.max_total_rounds' is 3." in said


def test_evaluations_of_a_federation_are_limited(site, tmp_path):  # noqa: F811
    """Under whatever session a server asks, after a restart of the site, and after its staff has agreed again."""
    evaluation, agreed = EvalOrder(1, 0, "training", "route"), {"evaluations": ["training"]}
    scored = {"route": {"class_path": "fl_lightning.FedStar"}}
    site = with_policy(tmp_path, max_evaluations=3, **agreed)
    assert not told(again(site, "a", evaluation, evaluation, **scored))
    assert not told(again(site, "a", evaluation, evaluation, **scored))  # the same request: answered from the store
    site = with_policy(tmp_path, max_evaluations=3, **agreed)
    said = "This site has evaluated 2 models in this federation, and its 'policy.max_evaluations' is 3. Evaluations that are"
    assert said in told(again(site, "b", evaluation, evaluation, **scored))
    assert not told(again(site, "b", evaluation, order(), **scored))
    SiteRecord(tmp_path / "north" / "state", Policy()).withdraw(FEDERATION)
    approve(tmp_path / "north" / "state", f"{FEDERATION} {digest_of(contract(**scored))}")
    site = with_policy(tmp_path, max_evaluations=3, **agreed)
    assert not told(again(site, "c", order(), **scored))
    assert "has evaluated 3 models" in told(again(site, "d", evaluation, **scored))


def parts() -> dict[str, bytes]:
    from fl_lightning.wire import to_bytes

    return {"model": to_bytes(server_model())}


def asked() -> dict[str, Any]:
    return {"session": "s", "model_version": 1, "orders": [order()], "settlements": []}


def test_a_withdrawn_site_trains_only_if_its_staff_agrees_again(site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, federations="any")
    assert not told(ask(site, "prepare"))
    record = SiteRecord(tmp_path / "north" / "state", Policy())
    assert record.withdraw(FEDERATION)
    assert not record.withdraw(OTHER)
    for federation in (FEDERATION, OTHER):
        assert "This site has withdrawn from this federation on " in told(
            ask(with_policy(tmp_path, federations="any"), "prepare", federation=federation)
        )
    approve(tmp_path / "north" / "state", f"{FEDERATION} {digest_of(contract())}")
    assert not told(ask(with_policy(tmp_path, federations="any"), "prepare"))


# ---------------------------------------------------------------- the log


def entries(tmp_path: Path, name: str = "north") -> list[dict[str, Any]]:
    found, broken = read_log(tmp_path / name / "state" / "audit.jsonl")
    assert broken == []
    return found


def test_the_log_says_what_left(tmp_path, monkeypatch):
    """Model, settings once, the part evaluated, every number and metric of every message."""
    prepare(tmp_path, monkeypatch)
    for name in NAMES:
        path = tmp_path / name / "data.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "client_test": 0.25}))
        start_site(tmp_path, name)
    config = configuration(client_evaluation={"every_n_rounds": 1, "metric": "val_accuracy"})
    federate(config)
    lines = entries(tmp_path)
    described = next(line for line in lines if line["kind"] == "describe" and line["direction"] == "out")
    assert described["told"]["num_examples"] == 18
    prepared = [line for line in lines if line.get("settings")]
    assert {line["model"] for line in prepared} == {"fl_lightning.ClassificationTask"}
    texts = [line for line in prepared if "text" in line]
    assert len(texts) == 1
    assert json.loads(texts[0]["text"])["federation"]["local"]["threads"] == 1
    orders = [one for line in lines for one in line.get("orders", ())]
    assert [one["train"]["round"] for one in orders if "train" in one] == [0, 1, 2]
    assert {one["evaluate"] for one in orders if "evaluate" in one} == {"test"}
    replies = [one for line in lines for one in line.get("replies", ()) if line["direction"] == "out"]
    updates = [one["update"] for one in replies if "update" in one]
    assert [one["round_idx"] for one in updates] == [0, 1, 2]
    assert all(one["train_loss"] > 0 and one["metrics"].keys() >= {"train_loss"} for one in updates)
    assert len([one for one in replies if "value" in one]) == len([one for one in orders if "evaluate" in one])


def test_answers_from_the_store_and_errors_are_logged(site, tmp_path):  # noqa: F811
    assert not told(work(site, order()))
    assert not told(work(site, order()))
    assert told(work(site, order(client=2)))
    lines = entries(tmp_path)
    stored = [line for line in lines if line.get("stored")]
    assert len(stored) == 1
    assert stored[0]["replies"][0]["update"]["num_examples"] == 24
    assert [line["error"] for line in lines if line["kind"] == "error"] == ["WireError"]


def test_a_missing_or_changed_line_shows(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    for k in range(3):
        log.record("out", "work", bytes([k]), ())
    AuditLog(tmp_path / "audit.jsonl").record("in", "describe", b"", ())  # after a restart
    path = tmp_path / "audit.jsonl"
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


def test_a_site_that_cannot_write_its_log_sends_only_a_code(site, tmp_path, monkeypatch):  # noqa: F811
    """A full disk: neither an update nor the text of an error leaves, and the server gets an answer."""
    said: list[str] = []
    monkeypatch.setattr(site, "_print", said.append)
    whole = open

    def full(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if str(tmp_path) in str(path) and ("a" in mode or "w" in mode):
            raise OSError(28, "No space left on device")
        return whole(path, mode, *args, **kwargs)

    monkeypatch.setattr("builtins.open", full)
    for reply in (ask(site, "describe"), ask(site, "prepare"), work(site, order())):
        assert set(reply) == {"kind", "version", "error"}
        assert told(reply).startswith("OSError (code ")
        assert "No space" not in told(reply)
    assert any("It cannot be written to errors.log: No space left on device." in line for line in said)


def test_text_of_a_server_cannot_control_the_sites_terminal(site, monkeypatch, tmp_path):  # noqa: F811
    said: list[str] = []
    monkeypatch.setattr(site, "_print", said.append)
    evil = "fl_lightning.\x1b[2J\nMLP\u202e"
    reply = ask(site, "prepare", contract=contract(model={"class_path": evil}))
    for text in (told(reply), *said):
        assert "\x1b" not in text
        assert "\n" not in text
    assert any("fl_lightning.?[2J?MLP?" in text for text in said)

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise OSError(f"cannot read {evil}")

    monkeypatch.setattr(site._data, "client", fails)
    work(site, order())
    log = (tmp_path / "north" / "state" / "errors.log").read_text()
    assert "\x1b" not in log
    assert "cannot read fl_lightning.?[2J" in log


def test_a_library_that_ends_the_process_is_an_error_of_the_site(site, monkeypatch):  # noqa: F811
    def ends(*args: Any, **kwargs: Any) -> Any:
        raise SystemExit(2)

    monkeypatch.setattr(site._data, "info", ends)
    assert told(ask(site, "describe")).startswith("SystemExit (code ")


def command(*words: str) -> None:
    from fl_lightning.flower.site import main

    main(["site", *words])


def test_the_staff_approves_withdraws_and_reads_the_log(site, tmp_path, capsys):  # noqa: F811
    site = with_policy(tmp_path, federations=0)
    folder = ["--folder", str(tmp_path / "north" / "state")]
    words = told(work(site, order())).partition("fl-lightning site ")[2].split()
    assert words[:3] == ["approve", "--name", "north"]
    command("approve", *folder, *words[3:])
    said = capsys.readouterr().out
    assert f"Agreed to federation {FEDERATION} with these settings:" in said
    assert '"class_path": "fl_lightning.ClassificationTask"' in said
    assert not told(work(site, order()))
    assert not told(work(site, order()))
    command("audit", *folder)
    said = capsys.readouterr().out
    assert f"federation {FEDERATION}, 20" in said
    assert f"settings {words[4]}: fl_lightning.ClassificationTask" in said
    assert "ordered 3 trainings, evaluations: none" in said
    assert "update of round 0: num_examples 24, num_steps 3, train_loss " in said
    assert "update of round 0 (again, from the store): num_examples 24" in said
    assert "error: RefusedError" in said
    assert "the chain is complete." in said
    command("withdraw", *folder, FEDERATION)
    assert "Deleted what this site kept for it." in capsys.readouterr().out
    assert not (tmp_path / "north" / "state" / "federations" / FEDERATION).exists()
    assert "has withdrawn" in told(work(site, order(round_idx=1)))  # at once
    assert "has withdrawn" in told(work(with_policy(tmp_path, federations=0), order()))
    command("withdraw", *folder, OTHER)
    assert "in which this site had not taken part." in capsys.readouterr().out
    log = tmp_path / "north" / "state" / "audit.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"num_steps": 3', b'"num_steps": 9', 1))
    command("audit", *folder, "--federation", OTHER)
    assert "the chain is BROKEN before the lines " in capsys.readouterr().out


def test_the_staff_agrees_to_another_number(site, tmp_path, capsys):  # noqa: F811
    state = tmp_path / "north" / "state"
    assert not told(ask(site, "prepare"))
    SiteRecord(state, Policy()).take_number(0)
    command("approve", "--folder", str(state), "--number", "2")
    assert "Agreed to be client 2." in capsys.readouterr().out
    SiteRecord(state, Policy()).take_number(2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["audit"], "Which site? Pass '--name', or '--folder'"),
        (["audit", "--name", "nowhere"], "'site_nowhere' is not the folder of a site that has had a message."),
        (["approve", "--folder", "STATE", "xyz", "0"], "The federation is 'xyz', but must be 32 hexadecimal digits"),
        (["approve", "--folder", "STATE", OTHER, "0" * 16], "No server has sent settings with the digest '0000000000000000'"),
        (["withdraw", "--folder", "STATE", "1"], "The federation is '1'"),
    ],
)
def test_wrong_words_of_the_staff_are_one_message(words, said, site, tmp_path, capsys):  # noqa: F811
    ask(site, "prepare")
    state = str(tmp_path / "north" / "state")
    with pytest.raises(SystemExit):
        command(*(state if word == "STATE" else word for word in words))
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_reports_are_logged_in_words():
    from fl_lightning.flower.audit import in_words

    assert in_words(EvalReport(0, 0.5)) == {"value": 0.5}
    assert in_words(ClientFailure(0, 1, "OSError (code 1)"))["failure"] == "OSError (code 1)"
    assert in_words("anything else") == {}
