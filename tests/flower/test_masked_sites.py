"""Sites that send nothing but masked words: the bits of a run without masks, and what a server cannot have."""

import json
import re
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sites_over_bytes as net
import torch
from masked_sites import SKIP, cheating, heard, masked, masks, note_with, plain, refuses, secure, steps_of

from fl_lightning import SecureAggregation
from fl_lightning.errors import ClientError, ProtocolError
from fl_lightning.flower import envelope
from fl_lightning.flower.site.limits import SiteLimits
from fl_lightning.flower.site.policy import Form, Masks, Noise, Policy
from fl_lightning.flower.site.recipe import RefusedError
from fl_lightning.flower.site.store import SiteRecord
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.sums import Grid
from fl_lightning.messages import ClientInfo, ClientTask, EvalOrder, Note, Progress
from fl_lightning.options.secure_aggregation.at_clients import LOSS, MasksAtClients
from fl_lightning.options.secure_aggregation.at_server import MaskedSums
from fl_lightning.options.secure_aggregation.description import RoundDescription
from fl_lightning.options.secure_aggregation.record import SignedLists
from fl_lightning.types import ClientUpdate, Pull, Snapshot
from fl_lightning.wire import from_bytes, to_bytes

# ---------------------------------------------------------------- a server that cheats


def other_model(asked: Any, parts: Any) -> Any:
    """Send one site a model that differs in the last bit of one number."""
    if "model" not in parts:
        return None
    model = from_bytes(parts["model"])
    name = sorted(model.tensors)[0]
    tensor = model.tensors[name].clone()
    tensor.view(-1)[0] = np.nextafter(tensor.view(-1)[0].item(), np.inf, dtype=np.float32).item()
    return asked, {**parts, "model": to_bytes(replace(model, tensors={**model.tensors, name: tensor}))}


def model_with(**changes: Any) -> Any:
    """Return a change of the model's message, such as its session or a limit."""

    def change(asked: Any, parts: Any) -> Any:
        model = parts.get("model")
        return model and (asked, {**parts, "model": to_bytes(replace(from_bytes(model), **changes))})

    return change


def other_settings(asked: Any, parts: Any) -> Any:
    contract = json.loads(json.dumps(asked["contract"]))
    contract["model"]["init_args"]["optimizer"]["init_args"]["lr"] = 1e-9
    return {**asked, "contract": contract}, parts


def order_with(**changes: Any) -> Any:
    def change(asked: Any, parts: Any) -> Any:
        order = next(iter(asked["orders"]), None)
        return ({**asked, "orders": [replace(order, **changes)]}, parts) if isinstance(order, ClientTask) else None

    return change


def evaluation(asked: Any, parts: Any) -> Any:
    order = next(iter(asked["orders"]), None)
    if not isinstance(order, ClientTask):
        return None
    return {**asked, "orders": [EvalOrder(order.version, order.client, "training", "evaluation")]}, parts


def differs(what: str) -> str:
    return f"The {what} that this site got differs from the one that all sites"


def cohort(*names: str) -> Any:
    return note_with("keys", terms=lambda d: {**d, "cohort": [[k, name] for k, name in enumerate(names)]})


ALONE = "The order asks for a figure or a model of this site alone, but only sums over sites leave it"
APART = "The order has a model for this site alone, so the server could tell the sites' updates apart"
STRANGER = "The round has sites whose public keys this site does not have ('policy.update.masks.peers'): 'invented'"
TOO_FEW = "The round has 2 sites, but must have 100 at most, and at least this site's 'policy.update.masks.least' of 3"
SHORT_LIST = "The updates of 2 sites would be added, but this site's 'policy.update.masks.least' is 3"
ATTACKS: dict[str, tuple[Any, str]] = {
    "another model": (other_model, differs("model")),
    "more epochs": (order_with(epochs=2), differs("order")),
    "a later place": (order_with(progress=Progress(1000)), differs("order")),  # when its rate has decayed
    "other settings": (other_settings, differs("settings")),
    "another session": (model_with(session="another"), differs("session")),  # it would forget what it keeps between rounds
    "another federation": (note_with("keys", terms=lambda d: {**d, "federation": "f" * 32}), differs("federation")),
    "an evaluation": (evaluation, ALONE),
    "a model to pass on": (order_with(delivers=False), ALONE),
    "a start of its own": (order_with(start=Snapshot(torch.zeros(53), torch.zeros(0, dtype=torch.int64))), APART),
    "a pull of its own": (order_with(pull=Pull(torch.zeros(53), 1e9)), APART),
    "an invented site": (cohort("site0", "site1", "site2", "invented"), STRANGER),
    "an exchanged name": (cohort("site1", "site0", "site2"), "The round under masks calls this site by another name"),
    "a sum of two": (cohort("site0", "site1"), TOO_FEW),
    "a list of two": (note_with("list", delivered=lambda d: [0, 1]), SHORT_LIST),
    "a list without it": (note_with("list", delivered=lambda d: [5, 6, 7]), "The list of survivors does not fit the round"),
    "an odd list": (note_with("list", delivered=lambda d: "all"), "The list of survivors cannot be read"),
    "an unknown step": (note_with("open", step=lambda d: "keys and all"), "A round under masks has no such step"),
    "no description": (note_with("keys", terms=lambda d: None), "The description of the round under masks cannot be read"),
    "a share that is none": (note_with("shares", announced=lambda d: {"1": "xyz"}), "A message of the round under masks"),
    "a short key": (note_with("shares", announced=lambda d: {**d, "1": "00"}), "An announcement of keys is too short"),
}


@pytest.mark.parametrize("attack", net.slow_but(ATTACKS, "an evaluation", "a sum of two"))
def test_a_server_that_cheats_a_site_gets_nothing_of_it(attack):
    masked()
    change, message = ATTACKS[attack]
    cheating("site0", change)
    assert refuses(secure(), message, "site0"), net.LINES


def coarse(name: str) -> str:
    return f"The grid of the sum '{name}' is too coarse for this site's numbers"


def grids(change: Any) -> Any:
    return lambda d: replace(d, grids=change(d.grids))


ONE = grids(lambda g: {"state": Grid(((1, 2.0**-30), (52, 1.0)), g["state"].largest, True)})
LIES: dict[str, tuple[Any, str]] = {
    "a coarse grid": (grids(lambda g: {n: replace(g[n], largest=2.0**50, certain=True) for n in g}), coarse("state")),
    "a grid for one number": (ONE, coarse("state") + ", or not the one that follows from the model"),
    "a grid for the losses": (grids(lambda g: {LOSS: Grid(((1, 2.0**30),), 2.0**30, True)}), coarse("figure: loss")),
    "a coarse grid of Scaffold's": (grids(lambda g: {**g, "control": Grid(((53, 2.0**45),), 1.0)}), coarse("control")),
    "huge sums": (lambda d: replace(d, sizes={**d.sizes, "more": 2**24}), differs("list of sums")),
    "another round": (lambda d: replace(d, round_idx=d.round_idx + 1), differs("round")),
}


@pytest.mark.parametrize("lie", net.slow_but(LIES, "a grid for one number"))
def test_a_description_that_all_sites_agree_on_may_still_not_single_one_out(lie, monkeypatch):
    """On a grid so coarse that the others' numbers are rounded to 0, the sum would be one site's."""
    masked()
    change, message = LIES[lie]
    described = MaskedSums._described
    monkeypatch.setattr(MaskedSums, "_described", lambda *arguments: change(described(*arguments)))
    assert refuses(secure(3, "Scaffold" if "Scaffold" in lie else "FedAvg"), message), net.LINES


@pytest.mark.slow
def test_a_model_is_opened_with_one_list_whatever_the_federation():
    """Two sums over lists that differ in one site would show its update; the same list again shows nothing new."""
    masked(4, least=3)
    config = secure(1, **SKIP)
    net.federate(config, "first")
    net.federate(config, "again")  # a new federation, with the same models and the same sites
    net.ABSENT.add("site3")
    net.refused(config, "third", "--federation.pool.min_sites", "3")
    assert [line for line in net.LINES if "has signed another list of survivors for the same model" in line]


@pytest.mark.slow
def test_the_sites_of_a_federation_stay_the_same():
    """Otherwise each round could leave out another one."""
    masked(5)
    assert refuses(secure(clients_per_round=4), "The sites of the round are others than before in this federation")


def described(round_idx: int, model: str, federation: str = "f") -> RoundDescription:
    return RoundDescription(federation, "c", "s", round_idx, ((0, "a"), (1, "b"), (2, "c")), 0.67, model, "w", {}, {})


def test_a_round_that_was_signed_is_not_signed_for_another_model():
    """A server that goes back to an early checkpoint, with a model changed in its last bit."""
    SignedLists(Path()).sign(described(4, "m4"), [0, 1, 2])
    lists = SignedLists(Path())  # after a restart
    lists.sign(described(4, "m4"), [2, 1, 0])
    for round_idx in (3, 4):
        with pytest.raises(ProtocolError, match="has signed the list of survivors of round 4 of this federation"):
            lists.sign(described(round_idx, "changed"), [0, 1, 2])
    another = "another list of survivors for the same model"
    with pytest.raises(ProtocolError, match=another):
        lists.sign(described(5, "m4", "g"), [0, 1])
    for others in (((0, "a"), (1, "b"), (2, "d")), ((0, "a"), (1, "b"), (2, "c"), (3, "d"))):  # a list names sites, not numbers
        with pytest.raises(ProtocolError, match=another):
            lists.sign(replace(described(5, "m4", "g"), cohort=others), [0, 1, len(others) - 1])
    lists.sign(replace(described(5, "m4", "h"), cohort=((0, "c"), (1, "b"), (2, "a"))), [0, 1, 2])
    lists.sign(described(5, "m5"), [0, 1, 2])


def test_no_secret_is_on_the_disk_or_in_the_log(monkeypatch):
    """Neither seeds, nor keys, nor shares, in any form; and no number of a single site is in a reply."""
    drawn, shares = list[bytes](), set[bytes]()
    real = secrets.token_bytes

    def noted(size: int = 32) -> bytes:
        found = real(size)
        drawn.extend([found] if size == 32 else [])  # the log's lines have random texts of 16 bytes
        return found

    masked()
    monkeypatch.setattr("fl_lightning.options.secure_aggregation.at_clients.secrets.token_bytes", noted)
    contents = heard()
    net.federate(secure())
    assert len(drawn) > 9 * 3
    for one in (one for content in contents for one in content.get("replies", ())):
        if isinstance(one, Note):
            shares |= {bytes.fromhex(text) for kind in ("seeds", "secrets") for text in one.content.get(kind, {}).values()}
        elif hasattr(one, "num_steps"):
            figures = (one.train_loss, one.local_score, one.update_norm, dict(one.metrics), one.seconds, one.optimizer)
            assert figures == (None, None, None, {}, 0.0, "")
            assert one.model.vector.numel() == 0
    assert shares
    files = [path.read_bytes() for name in net.REGISTERED for path in Path(name, "state").rglob("*") if path.is_file()]
    for secret in (*drawn, *shares):
        assert not any(secret in content or secret.hex().encode() in content for content in files)


@pytest.mark.slow
def test_no_limit_of_the_servers_tells_how_large_a_site_s_weights_are():
    """Otherwise a server would find the largest one by trying limits: a round without a signed list may begin again."""
    masked()
    cheating("site0", model_with(max_abs_weight=1e-3))
    assert net.same_bits(net.simulate(plain()), net.federate(secure()))


def test_a_failure_tells_nothing_but_that_it_failed(monkeypatch):
    """The class of an error may depend on the rows, and a server could choose models by which it does."""
    masked(4)
    told, real = list[str](), MasksAtClients.seal

    def broken(self: Any, task: Any, update: Any) -> Any:
        if update.client == 1:
            raise ClientError("A number of 'state' is too large")
        return real(self, task, update)

    def listen(step: str, ask: Any) -> bytes:
        reply = ask()
        told.extend([envelope.opened(reply, ("reply",))["replies"][0].cause] if step == "update" else [])
        return reply  # type: ignore[no-any-return]

    monkeypatch.setattr(MasksAtClients, "seal", broken)
    steps_of("site1", listen)
    net.federate(secure(**SKIP))
    assert len(told) == 3
    assert all(re.fullmatch(r"An error \(code [0-9a-f]{8}; its text is in the site's errors.log\)", one) for one in told)


# ---------------------------------------------------------------- a site that cheats


def with_model(update: ClientUpdate, **changes: Any) -> ClientUpdate:
    sent = {"vector": update.snapshot.vector, "counters": update.snapshot.counters, **changes}
    return replace(update, model=Snapshot(**sent))


def an_update(change: Any) -> Any:
    return lambda one: change(one) if isinstance(one, ClientUpdate) else one


SEVEN = torch.zeros(7, dtype=torch.int64)
OTHER_CONTENTS: list[tuple[Any, str]] = [
    (lambda u: replace(u, extras={}), "Client 1 sent no masked words in round 0, but (59,) of int64 are needed"),
    (lambda u: replace(u, extras={"words": torch.zeros(3)}), "Client 1 sent masked words of torch.float32 and shape (3,)"),
    (lambda u: with_model(u, counters=SEVEN), "Site site1 (client 1): its counters are torch.int64 of shape (7,), but must"),
    (lambda u: replace(u, extras={"words": u.extras["words"] + 2**61}), "The sum 'figure: examples' of the masked updates is"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "message"), net.slow_but(OTHER_CONTENTS, OTHER_CONTENTS[0]))
def test_a_site_that_sends_something_else_is_named(change, message):
    masked(4)
    net.lying("site1", an_update(change))
    assert message in net.refused(secure())


@pytest.mark.slow
def test_tensors_beside_the_words_are_not_read():
    masked()
    net.lying("site1", an_update(lambda update: with_model(update, vector=torch.ones(9), moved={"x": torch.ones(2)})))
    assert net.same_bits(net.federate(secure()), net.simulate(plain()))


# ---------------------------------------------------------------- the site decides


@pytest.mark.slow
def test_sites_that_require_noise_agree_on_the_model():
    """They set limits of the model themselves, so that no failure tells of exact numbers."""
    masked(update={**masks(), "noise": {"least": 0.5}}, tells=None)
    noise = net.of("ClientPrivacy", max_norm=1.0, noise_multiplier=1.0, noise="local", delta=1e-3)
    net.federate(secure(3, net.of("FedAvg", weighting="uniform"), transforms=[noise]))
    assert sum("trained" in line for line in net.LINES) == 9


@pytest.mark.slow
def test_noise_in_each_step_and_masks_hold_together():
    """The site requires both; what leaves is masked, and what is under the mask is noisy, so no run equals another."""
    masked(update={**masks(), "noise": {"least": 0.5}}, tells=["examples"])
    local = {"threads": 1, "privacy": {"noise_multiplier": 0.8, "max_grad_norm": 1.0}}
    one, other = (net.federate(secure(local=local), f"run{k}") for k in range(2))
    assert not net.same_bits(one, other)
    assert all(torch.isfinite(tensor).all() for tensor in one.values())


@pytest.mark.slow
def test_sizes_leave_only_in_sums_if_the_site_says_so():
    """The weights are the numbers of examples, inside of the masks: the mean is that of float64, and no message has a size."""
    masked(tells=None)
    contents = heard()
    found, expected = net.federate(secure()), net.simulate(plain())
    assert all(torch.allclose(found[name], expected[name], rtol=0, atol=1e-6) for name in expected)
    told = [one for content in contents for one in (content.get("info"), *content.get("replies", ()))]
    infos = {(one.num_examples, one.label_counts, one.sampling) for one in told if isinstance(one, ClientInfo)}
    updates = [(one.num_examples, one.num_steps) for one in told if isinstance(one, ClientUpdate)]
    assert infos == {(1, None, None)}
    assert updates == [(1, 0)] * 9


@pytest.mark.slow
def test_a_site_that_hides_its_sizes_still_counts_its_rows():
    masked(tells=None, min_rows=25)
    assert refuses(secure(), "This site's training part has fewer than 25 rows or persons")


def test_whole_numbers_that_would_leave_are_refused_by_the_site():
    """BatchNorm's counts of batches may leave, since they follow from the numbers of steps."""
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    limits = SiteLimits(Policy())
    limits.check_buffers([SecureAggregation()], ModelState(module))
    module.register_buffer("seen", torch.zeros((), dtype=torch.int64))
    limits.check_buffers([], ModelState(module))
    with pytest.raises(RefusedError, match="The module has a buffer 'seen' of whole numbers"):
        limits.check_buffers([SecureAggregation()], ModelState(module))


def test_a_federation_in_which_trainings_fail_waits_for_the_staff():
    """Whether one fails may depend on single rows: a server could ask with a model that overflows on some."""
    record, settings = SiteRecord(Path(), Policy(federations="any")), {"trains": True}
    with record.admission("f" * 32, settings):
        pass
    assert [record.note_failure("f" * 32, 3) for _ in range(3)] == [False, False, True]
    with pytest.raises(RefusedError, match="A training of this federation has failed here"):
        record.admission("f" * 32, settings).__enter__()
    assert Policy().most_failures is None
    assert Policy(update=Form(masks=Masks("peers"))).most_failures == 3
    assert Policy(update=Form(Noise(1.0))).most_failures == 1
