"""What a site refuses of its own settings, and a replay of a recorded run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asked_site import north
from masked_sites import masked
from refusing import Refusal
from sites_over_bytes import configuration, prepare, refused, restart, simulate

from fl_lightning import ConfigurationError
from fl_lightning.flower.site.budget import SiteBudget
from fl_lightning.flower.site.policy import Budget, Form, Machine, Masks, Noise, Policy
from fl_lightning.flower.wire.pool import FlowerPool
from fl_lightning.options.asynchronous.arrivals import ArrivalFile, Recording


def policy(**settings: Any) -> Callable[[], Any]:
    return lambda: Policy(**settings)


def budget(**settings: Any) -> Callable[[], Any]:
    return lambda: Budget(**{"data": "x", "account": "none", "max_epsilon": 1.0, **settings})


def null(name: str) -> Refusal:
    group, _, inner = name.partition(".")
    return Refusal(
        lambda: north(**{group: {inner: None} if inner else None}),
        f"data.yaml' cannot be read: 'policy.{name}' is null, but needs",
    )


def written(given: Any) -> Callable[[], Any]:
    """Return a call that starts a site with this policy in its file."""
    return lambda: (north(), restart("north", policy=given))


HEAD = json.dumps({"clients": ["a", "b"], "seed": 0}) + "\n"


def row(round_idx: int, order: int, client: int, version: int, lost: bool = False, of: int = 1) -> str:
    arrival = {"round": round_idx, "order": order, "client": client, "version": version, "lost": lost, "of": of}
    return json.dumps(arrival) + "\n"


def reading(text: str | None) -> Callable[[], Any]:
    """Return a call that reads the arrivals of two clients, seed 0 and a buffer of one; None for no file."""

    def call() -> None:
        path = Path("none.jsonl" if text is None else "arrivals.jsonl")
        if text is not None:
            path.write_text(text)
        Recording.read(path, 2, 0, 1)

    return call


def replaying(rounds: int = 2, **federation: Any) -> Callable[[], Any]:
    """Return a replay of two rounds of three sites."""

    def call() -> None:
        prepare(start=False)
        ArrivalFile(Path(), ("north", "south", "west"), 0).begin(0)
        path = Path("arrivals.jsonl")
        path.write_text(path.read_text() + row(0, 0, 0, 0) + row(1, 1, 1, 0))
        asynchronous = {"concurrency": 3, "buffer": 1, "replay": str(path)}
        config = configuration(rounds, strategy="FedAsync", asynchronous=asynchronous, **federation)
        raise ConfigurationError(refused(config, fit=simulate))

    return call


OWN_NOISE = {"class_path": "ClientPrivacy", "init_args": {"max_norm": 1, "noise_multiplier": 1, "noise": "local"}}
REFUSALS = [
    # the policy
    Refusal(policy(federations=-1), "'policy.federations' must be any, or a number of 0 or above"),
    Refusal(policy(federations="all"), "'policy.federations'"),
    Refusal(policy(digits=0), "'policy.digits' must be 1 or above, or null"),
    Refusal(policy(min_rows=0), "'policy.min_rows' must be 1 or above"),
    Refusal(policy(tells=["los"]), "'policy.tells' has 'los', but must be of examples, ... metric/NAME. Did you mean loss?"),
    Refusal(lambda: Machine(trainings=0), "'policy.machine.trainings' must be 1 or above"),
    Refusal(lambda: Machine(hours=0.0), "'policy.machine.hours' must be above 0"),
    Refusal(policy(answers=0), "'policy.answers' must be 1 or above"),
    Refusal(lambda: Machine(memory=0.0), "'policy.machine.memory' must be above 0, in GiB"),
    *map(null, ("min_rows", "federations", "code", "machine.trainings")),
    *(Refusal(written(name), f"policy' names a preset ({name}). There are none any more") for name in ("strict", "open")),
    Refusal(written({"min_steps": 3}), "'policy.min_steps' does not exist any more. Remove it: docs/real_federation.md shows"),
    Refusal(written({"min_noise": 1}), "'policy.min_noise' is now policy.update.noise.least: docs/real_federation.md shows"),
    Refusal(written({"metrics": "any"}), "'policy.metrics' is now an entry of policy.tells: docs/real_federation.md shows"),
    # noise and masks
    *(
        Refusal(written({"update": form}), "'policy.update' must be plain, or have the settings of noise, of masks or of both")
        for form in (None, {}, "masks", {"mask": {"peers": "peers"}}, {"masks": {}}, {"noise": None})
    ),
    Refusal(written({"update": {"noise": {"budget": None}}}), "'policy.update.noise' needs 'least'. Set it; see"),
    Refusal(written({"update": {"masks": {"least": 3}}}), "'policy.update.masks' needs 'peers'. Set it; see"),
    Refusal(written({"update": {"masks": {"peers": "peers", "least": 1}}}), "read: 'policy.update.masks.least' must be 2 or"),
    Refusal(lambda: Noise(0.0), "'policy.update.noise.least' must be above 0"),
    Refusal(policy(update=Form(Noise(1.0)), tells=["loss"]), "'policy.tells' has 'loss', which ... Remove it: with noise"),
    Refusal(policy(update=Form(masks=Masks("peers")), tells=["seconds"]), "'policy.tells' has 'seconds', which ... Remove it"),
    Refusal(lambda: Masks("peers", lost=-1), "'policy.update.masks.lost' must be 0 or above"),
    Refusal(lambda: masked(update={"masks": {"peers": "nowhere"}}), "'policy.update.masks.peers' is 'nowhere', which is no"),
    # the budget
    Refusal(lambda: SiteBudget(budget()(), True), "'policy.update.noise.budget.account' is ...none', which does not exist"),
    Refusal(budget(data=" "), "'policy.update.noise.budget.data' must be"),
    Refusal(budget(max_epsilon=0.0), "'policy.update.noise.budget.max_epsilon' must be"),
    Refusal(budget(delta=1.0), "'policy.update.noise.budget.delta' must be"),
    # silence that is shorter than two signs of life
    Refusal(lambda: FlowerPool(timeout=5), "'federation.pool.timeout' ... 30 seconds or above, or null ... 5"),
    # a replay that could not repeat a run to the bit
    Refusal(replaying(transforms=[OWN_NOISE]), "repeats a run to the bit, but ClientPrivacy adds noise that each site draws"),
    Refusal(replaying(availability={"clock": {"ticks": 10}}), "which cannot have had 'federation.availability.clock'"),
    Refusal(replaying(3), "which has 2 rounds, but 'trainer.max_epochs' is 3. Set it to 2 at most."),
    # the file of another run, or a broken one
    Refusal(reading(None), "is 'none.jsonl', which is not a file. Name the arrivals.jsonl in a run's folder"),
    Refusal(reading(""), "does not begin with a line of clients and a seed"),
    Refusal(reading("round,client\n"), "does not begin with a line of clients and a seed"),
    Refusal(reading(HEAD.replace(', "b"', "")), "whose 'clients' is 1, but this run has 2"),
    Refusal(reading(HEAD.replace(": 0", ": 4")), "whose 'seed' is 4, but this run has 0"),
    Refusal(reading(HEAD + row(0, 0, 0, 0) + "x\n"), "Line 3 of ... is not an arrival"),
    Refusal(reading(HEAD + row(0, 0, 2, 0)), "Line 2 of ... is not an arrival"),
    Refusal(reading(HEAD + row(-1, 0, 1, 0)), "Line 2 of ... is not an arrival"),
    Refusal(
        reading(HEAD + row(0, 0, 0, 0, of=2) + row(0, 1, 1, 0, of=2)),
        "round 0 has 2 updates, but 'federation.asynchronous.buffer' is 1",
    ),
    Refusal(reading(HEAD + row(0, 0, 0, 0) + row(1, 2, 1, 0)), "which lacks the end of task 1, or has one twice. Copy it"),
    Refusal(reading(HEAD + row(0, 1, 0, 0)), "which lacks the end of task 0"),
    Refusal(reading(HEAD + row(0, 0, 0, 0) + row(0, 0, 0, 0)), "which lacks the end of task 1, or has one twice"),
    Refusal(reading(HEAD + row(0, 0, 0, 1)), "round 0 has a task of client 0 from model 1, which it cannot have begun"),
    Refusal(reading(HEAD + row(0, 0, 1, 0) + row(1, 1, 0, 0) + row(2, 2, 0, 1)), "round 2 has a task of client 0 from model"),
]
