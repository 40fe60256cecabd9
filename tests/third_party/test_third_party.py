"""Modules of other packages, unchanged: what README promises for any module. Needs the extra ``third-party``."""

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import Collect
from federations import same_bits, trainer, weights
from launching import launch
from third_party_modules import CASES, Case, scene_byol, scenes
from third_party_runs import ROUNDS, adafed, divided, plain_and_federated

from fl_lightning import Checkpoints, FederatedOrchestrator, LocalTraining
from fl_lightning.functional.model_state import ModelState

INSTALLED = [name for name, case in CASES.items() if case.is_installed]
EACH = [pytest.param(name, marks=[] if name in INSTALLED else pytest.mark.skip(reason="not installed")) for name in CASES]
RUNS = Path(__file__).with_name("third_party_runs.py")
pytestmark = [pytest.mark.third_party, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Any:
    """Run AdaFed once for each module; several tests compare with it."""
    folder, found = tmp_path_factory.mktemp("adafed"), {}

    def run(name: str) -> Any:
        if name not in found:
            torch.set_num_threads(1)
            found[name] = (*adafed(CASES[name], folder / str(len(found))), folder / str(len(found)))
        return found[name]

    return run


@pytest.mark.parametrize("name", EACH)
def test_fedavg_averages_the_clients_weighted_by_examples(name):
    torch.manual_seed(1)
    case, collect = CASES[name], Collect()
    module = case.make()
    before = weights(module)
    federation = FederatedOrchestrator(local=LocalTraining(threads=1), checkpoints=Checkpoints(list(case.trusted)))
    trainer(1, federation, collect, num_sanity_val_steps=0).fit(module, divided(case))
    sizes = [update.num_examples for update in collect.updates]
    assert len(set(sizes)) == 2
    expected = sum(n / sum(sizes) * u.snapshot.vector.double() for n, u in zip(sizes, collect.updates, strict=True))
    assert torch.allclose(ModelState(module).vector().double(), expected, rtol=1e-5, atol=1e-6)
    assert not same_bits(weights(module), before)


@pytest.mark.parametrize("name", EACH)
def test_a_resumed_run_of_adafed_on_the_modules_own_metric_has_the_same_bits(name, whole, tmp_path):
    module, run, folder = whole(name)
    assert run.global_step == ROUNDS
    assert torch.isfinite(run.callback_metrics[CASES[name].metric])
    resumed, _ = adafed(CASES[name], tmp_path, resume=folder / "epoch=0.ckpt")
    assert same_bits(weights(resumed), weights(module))


@pytest.mark.parametrize("name", EACH)
def test_its_own_class_loads_the_checkpoint(name, whole):
    module, _, folder = whole(name)
    loaded = type(module).load_from_checkpoint(folder / f"epoch={ROUNDS - 1}.ckpt", **CASES[name].load())
    assert same_bits(weights(loaded), weights(module))


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory) -> Path:
    """Run all modules in two processes, which import the packages once."""
    folder = tmp_path_factory.mktemp("ranks")
    launch([str(RUNS), "2", str(folder), *INSTALLED], 280, folder, ranks=2)
    return folder


@pytest.mark.parametrize("name", EACH)
def test_two_ranks_have_the_same_bits(name, whole, on_two_ranks):
    module, _, _ = whole(name)
    assert same_bits(torch.load(on_two_ranks / f"{INSTALLED.index(name)}.pt"), weights(module))


@pytest.mark.parametrize("name", EACH)
def test_one_client_is_plain_training(name):
    plain, federated = plain_and_federated(CASES[name])
    assert plain.keys() == federated.keys()
    distances = {
        name: float((plain[name].double() - federated[name].double()).abs().max()) for name in plain if plain[name].numel()
    }
    furthest = max(distances, key=lambda name: distances[name])
    assert distances[furthest] < CASES[name].bound, furthest


@pytest.mark.skipif(not CASES["torchgeo: ClassificationTask"].is_installed, reason="not installed")
def test_torchgeos_byol():
    """Its images have 224 pixels, so it runs once: it keeps outputs with a history, and its target follows."""
    case = Case(("torchgeo",), scene_byol, scenes, "train_loss")
    torch.manual_seed(1)
    module = case.make()
    before = weights(module.model.target._projector)
    federation = FederatedOrchestrator(local=LocalTraining(threads=1, limit_train_batches=1))
    trainer(1, federation, num_sanity_val_steps=0, limit_val_batches=0).fit(module, divided(case))
    assert not same_bits(weights(module.model.target._projector), before)
