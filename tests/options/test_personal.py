"""Personal parts: what each client keeps for itself is neither sent nor averaged, and never evaluated without the client."""

import copy
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from against_hand import assert_close, average_shared, complete, fit
from by_hand import LR, World
from engine_runs import Collect
from federations import SIZES, Blobs, Consecutive, Plain, client_scores, ready, trainer, weights
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn

import fl_lightning as fl
from fl_lightning.cli.commands.export import main as export_main
from fl_lightning.options.personal import personal_names

NORM, HEAD, ALL = fl.PersonalPart(modules="torch.nn.BatchNorm1d"), fl.PersonalPart(names="net.3.*"), fl.PersonalPart(names="*")


def by_hand(names: list[str], rounds: int = 3) -> list[nn.Module]:
    """Every client's network: what is in ``names`` stays, everything else is averaged by examples, counters by maximum."""
    torch.manual_seed(3)
    start = Plain(lr=LR, batchnorm=True).double().net
    world = World(torch.float64)
    clients = [copy.deepcopy(start) for _ in SIZES]
    for _ in range(rounds):
        clients = [world.train(net, k)[0] for k, net in enumerate(clients)]
        average_shared(clients, names.__contains__)
    return clients


@pytest.mark.parametrize(("part", "engine"), [(NORM, "trainer"), (HEAD, "stacked")])
def test_the_rest_is_averaged_and_each_client_keeps_its_own(part, engine):
    module, federation, _ = fit(personal=[part], local=fl.LocalTraining(max_epochs=2, engine=engine))
    names = [name.removeprefix("net.") for name in personal_names(Plain(batchnorm=True), [part])]
    assert len(names) == (5 if part is NORM else 2)
    for client, net in enumerate(by_hand(names)):
        assert_close(net.state_dict(), complete(module, federation, client))


def test_everything_personal_is_training_alone():
    module, federation, _ = fit(personal=[ALL])
    _, alone, _ = fit(route=fl.LocalOnly("val_acc"))
    for client in range(len(SIZES)):
        own, other = complete(module, federation, client), alone._run.memory.last_model(client)
        floats = [t.reshape(-1) for name, t in own.items() if t.is_floating_point() and "running" not in name]
        floats += [t.reshape(-1) for name, t in own.items() if "running" in name]
        assert torch.equal(torch.cat(floats), other.vector)
        assert own["1.num_batches_tracked"] == other.counters[0]


@pytest.mark.parametrize("starts", [("first", "first"), ("mean", "mean"), ("mean", "first")])
def test_a_client_that_has_not_trained_has_the_part_of_the_start_or_the_mean_of_the_others(starts):
    """By hand: the mean, weighted by examples, of the parts of those that have trained; and the scores that all get."""
    torch.manual_seed(3)
    first = Plain(lr=LR, batchnorm=True).double()
    data = {"client_test": 0.3}
    personal = [replace(part, start=start) for part, start in zip((HEAD, NORM), starts, strict=True)]
    averaged = {name for part in personal if part.start == "mean" for name in part.select(first)}
    chosen = {"personal": personal, "clients_per_round": 2, "client_evaluation": fl.ClientEvaluation(1, "val_loss")}
    module, federation, _ = fit(1, data=data, **chosen)
    memory, probe = federation._run.memory, ready(fl.FederatedDataModule(Blobs(), Consecutive(), **data))
    parts = {k: memory.held(k) for k in range(3) if memory.held(k)}
    sizes = {k: len(probe.splits.training[k]) for k in parts}
    (new,) = {0, 1, 2} - parts.keys()
    assert len(set(sizes.values())) == 2
    own = {name: tensor for name, tensor in weights(first).items() if name in parts[min(parts)]}
    for name in own.keys() & averaged:
        tensors = [(sizes[k], part[name]) for k, part in parts.items()]
        total = max(tensor for _, tensor in tensors) if name.endswith("tracked") else sum(n * tensor for n, tensor in tensors)
        own[name] = total if name.endswith("tracked") else total / sum(sizes.values())
    assert_close(own, weights(module), 1e-12)  # the server's model has what a new client gets
    x, y = Blobs(dtype=torch.float64).train
    for k in range(3):
        module.load_state_dict(own if k == new else parts[k], strict=False)
        rows = probe.splits.test[k]
        with torch.no_grad():
            expected = nn.functional.cross_entropy(module.net.eval()(x[rows]), y[rows])
        assert float(client_scores(federation)[0][k]) == pytest.approx(float(expected), rel=1e-6)
        assert k == new or any(not torch.equal(tensor, own[name]) for name, tensor in parts[k].items())


def test_fine_tuning_starts_from_the_clients_own_part_and_alone_from_the_start():
    """With everything personal, training alone is the federation itself, and fine-tuning goes on from there."""
    _, federation, _ = fit(
        2,
        personal=[ALL],
        data={"client_test": 0.3},
        client_evaluation=fl.ClientEvaluation(1, "val_loss", personal_epochs=2, compare_alone=True),
        flags={"default_root_dir": "out"},
    )
    header, *rows = [line.split(",") for line in Path("out/client_comparison.csv").read_text().splitlines()]
    assert header[2:] == ["local only", "own", "personalised", "gain"]
    _, longer, _ = fit(
        3, personal=[ALL], data={"client_test": 0.3}, client_evaluation=fl.ClientEvaluation(1, "val_loss")
    )  # the third round is two epochs more; no shuffling
    for client, row in enumerate(rows[:3]):
        assert float(row[2]) == float(row[3]) == float(client_scores(federation)[1][client])
        assert float(row[4]) == pytest.approx(float(client_scores(longer)[2][client]), rel=1e-12)


@pytest.mark.parametrize(
    "settings",
    [{}, {"strategy": fl.FedNova()}, {"strategy": fl.Scaffold()}, {"transforms": [fl.TopK(0.5)]}, {"route": fl.Mediators(2)}],
    ids=["plain", "fednova", "scaffold", "compressed", "chains"],
)
def test_nothing_personal_is_in_a_message(settings):
    sent = Collect()
    _, federation, _ = fit(1, sent, personal=[NORM, HEAD], **settings)
    shared = 4 * 8 + 8
    for update in sent.updates:
        assert update.bytes_down == 8 * shared * (2 if "strategy" in settings and update.extras else 1)
        if update.model is not None and not settings.get("transforms"):
            assert update.state.numel() == shared
            assert update.counters.numel() == 0
        assert all(extra.numel() == shared for extra in update.extras.values())
    assert all(len(federation._run.memory.held(k)) == 7 for k in range(3))


def test_client_privacy_allows_personal_batch_norm_and_says_that_it_has_none(caplog):
    with caplog.at_level(logging.INFO):
        fit(1, personal=[NORM], transforms=[fl.ClientPrivacy(0.5, 0.3, "local", noise_seed=7)])
    assert "The parts that they hold have none: whoever gets a client's complete model" in caplog.text
    shared, saved = 8 * (32 + 8 + 24 + 3), 8 * 4 * 8 + 8
    share = 100 * saved / (shared + saved)
    assert (
        f"A message carries {shared} bytes instead of {shared + saved} in each direction ({share:.1f} % saved)" in caplog.text
    )
    assert "Each client keeps 5 tensors for itself: net.1.weight, net.1.bias, net.1.running_mean" in caplog.text


def test_what_matches():
    class Tied(nn.Module):
        server_buffers = ("given",)
        client_state = ("queue",)

        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(3, 3, bias=False)
            self.decoder = nn.Linear(3, 3, bias=False)
            self.decoder.weight = self.encoder.weight
            self.head = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
            self.register_buffer("given", torch.zeros(1))
            self.register_buffer("queue", torch.zeros(1))

    def names(**chosen: object) -> tuple[str, ...]:
        return personal_names(Tied(), [fl.PersonalPart(**chosen)])

    norm = tuple(f"head.1.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"))
    assert names(modules="torch.nn.BatchNorm1d") == norm
    assert names(modules=nn.BatchNorm1d) == norm
    assert names(names="head") == names(names="head.*") == ("head.0.weight", "head.0.bias", *norm)
    both = [fl.PersonalPart(names="bias"), fl.PersonalPart(names="1.weight")]
    assert personal_names(Tied(), both) == ("head.0.bias", "head.1.weight", "head.1.bias")
    assert names(names="decoder.weight") == ("encoder.weight", "decoder.weight")
    assert names(names="*") == ("encoder.weight", "decoder.weight", "head.0.weight", "head.0.bias", *norm)


EVALUATED = {"data": {"client_test": 0.3}, "client_evaluation": fl.ClientEvaluation(1, "val_acc")}


def test_monitors_see_the_clients_mean_weighted_by_examples(tmp_path):
    best = fl.BestCheckpoint("val_acc", dirpath=str(tmp_path))
    stop = EarlyStopping("val_acc", patience=1, mode="max")
    flags = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    _, federation, run = fit(9, best, stop, personal=[HEAD], flags=flags, **EVALUATED)
    sizes = np.array([2, 6, 4])
    means = [float((v.numpy() * sizes).sum() / 12) for v in client_scores(federation).values()]
    assert float(best.best_model_score) == pytest.approx(max(means))
    assert torch.load(tmp_path / "best.ckpt", weights_only=True)["epoch"] == means.index(max(means))
    assert stop.stopped_epoch == len(means) - 1 < 8
    assert run.limit_val_batches == 1.0  # as the user had it


def test_an_export_is_a_clients_complete_model(tmp_path, capsys):
    flags = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    limit = {"storage": fl.Storage(memory=0.0)}  # by way of files with digests
    module, federation, _ = fit(2, fl.LastCheckpoint(), personal=[NORM, HEAD], clients_per_round=2, flags=flags, **limit)
    assert (tmp_path / "client_state").is_dir()
    saved = str(tmp_path / "checkpoints" / "last.ckpt")
    for client in range(3):
        target = tmp_path / f"{client}.ckpt"
        export_main(["--client", str(client), "--ckpt_path", saved, "--output", str(target)])
        said = capsys.readouterr().out
        found = Plain.load_from_checkpoint(target)
        own = federation._run.memory.held(client)
        assert (f"with 7 tensors of client {client}" if own else f"client {client} has not trained yet") in said
        expected = {f"net.{name}": tensor for name, tensor in complete(module, federation, client).items()}
        state = {name: tensor for name, tensor in found.state_dict().items() if name in expected}
        assert all(torch.equal(state[name], tensor.to(state[name])) for name, tensor in expected.items())
        tested = trainer(1, fl.FederatedOrchestrator(personal=[NORM, HEAD]))
        tested.test(found, Blobs(), ckpt_path=str(target), verbose=False)
    tested = trainer(1, fl.FederatedOrchestrator(personal=[NORM, HEAD]))
    with pytest.raises(fl.CheckpointError, match=r"holds only the shared part .* 'fl-lightning export --client NAME'"):
        tested.test(Plain(batchnorm=True), Blobs(), ckpt_path=saved, verbose=False)
    with pytest.warns(UserWarning, match="the parts that the clients hold are those with which new clients begin"):
        trainer(1, fl.FederatedOrchestrator(personal=[NORM])).test(Plain(batchnorm=True), Blobs(), verbose=False)
    for arguments, message in (
        (["--client", "7", "--ckpt_path", saved], "There is no client '7'. The federation has 0, 1, 2."),
        (["--client", "1", "--ckpt_path", str(tmp_path / "1.ckpt")], "was not written by a federation, so it has no clients"),
        (["--client", "1", "--ckpt_path", saved, "--output", saved], "already exists and was not changed"),
    ):
        with pytest.raises(fl.FederationError) as told:
            export_main(arguments)
        assert message in str(told.value)


def test_fedloss_weighs_by_the_losses_of_complete_models():
    """By hand: each client's model with its own last layer, on its own validation part."""
    sent, data = (
        Collect(),
        fl.FederatedDataModule(Blobs(shuffle=False, dtype=torch.float64), Consecutive(), client_validation=0.3),
    )
    torch.manual_seed(3)
    module = Plain(lr=LR, batchnorm=True).double()
    start, world = copy.deepcopy(module.net), World(torch.float64)
    federation = fl.FederatedOrchestrator(fl.FedLoss(), local=fl.LocalTraining(max_epochs=2), personal=[HEAD])
    trainer(1, federation, sent, precision="64-true").fit(module, data)
    for update in sent.updates:
        training, held = (part[update.client] for part in (data.splits.training, data.splits.validation))
        net, _ = world.train(start, update.client, examples=(world.x[training], world.y[training]))
        expected = world.evaluate(net, nn.functional.cross_entropy, world.x[held], world.y[held])
        assert update.weight == pytest.approx(expected, rel=1e-6)  # losses are logged in float32
    assert len({update.weight for update in sent.updates}) == 3
