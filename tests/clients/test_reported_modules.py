"""Modules of other people: what plain Lightning does right with them, a federation does too."""

from functools import partial
from typing import Any

import pytest
import torch
from algorithms import Unusual
from engine_runs import fitted, tier_1, variant
from federations import SIZES, Blobs, Cohorts, Plain, federate, same_bits, weights
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel, ManualOptimBoringModel
from sparse_gradients import SPARSE, Words
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fl_lightning import FedAvg, FedDyn, GeometricMedian, IIDPartitioner, LocalTraining, RingFed, Scaffold

ENGINES = ("trainer", "fabric", "stacked")


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers, whatever ``state_dict`` says."""
    return {name: t.detach().clone() for name, t in (*module.named_parameters(), *module.named_buffers())}


class WithoutStatistics(Plain):
    """Leaves BatchNorm's statistics out of checkpoints: its means by a method, and its variances by a hook."""

    def __init__(self) -> None:
        super().__init__(batchnorm=True)
        self.register_state_dict_post_hook(self._remove)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {name: value for name, value in super().state_dict(*args, **kwargs).items() if "running_mean" not in name}

    @staticmethod
    def _remove(module: Any, state: Any, prefix: Any, metadata: Any) -> None:
        for name in [name for name in state if "running_var" in name]:
            del state[name]


@pytest.mark.parametrize("engine", ENGINES)
def test_statistics_that_state_dict_leaves_out_are_averaged(engine, recwarn):
    makes = partial(Plain, batchnorm=True), WithoutStatistics
    found = [tensors(fitted(make, local=LocalTraining(engine=engine))) for make in makes]
    assert same_bits(*found)
    assert float(found[1]["net.1.running_mean"].abs().max()) > 0.1
    assert not [one for one in recwarn if "not persistent" in str(one.message)]


class Ranged(Plain):
    """Finds the range of its inputs from infinite values on, and scales by it; validation reads what training found."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.full((4,), torch.inf))
        self.register_buffer("seen", torch.tensor(torch.nan))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        lows = batch[0].min(0).values
        self.low = torch.minimum(self.low, lows)
        self.seen = lows.mean() if self.seen.isnan() else self.seen
        return super().training_step(batch, batch_idx)


Lowest = variant(Ranged, extreme_buffers={"low": "min"})


def test_buffers_that_training_gives_a_value_are_averaged():
    data = Blobs(shuffle=False)
    module = Ranged()
    federate(module, 1, data=data, local=LocalTraining())
    parts = torch.split(data.train[0], SIZES)
    lows = torch.stack([part.min(0).values for part in parts])
    sizes = torch.tensor(SIZES, dtype=torch.float64)
    torch.testing.assert_close(module.low, ((sizes[:, None] * lows).sum(0) / sizes.sum()).float())
    firsts = torch.stack([part[:5].min(0).values.mean() for part in parts])
    torch.testing.assert_close(module.seen, ((sizes * firsts).sum() / sizes.sum()).float())


@pytest.mark.parametrize(("setting", "rounds"), [("all", 1), ("two of three", 3), ("all at once", 1), ("ring", 3)])
def test_the_minimum_is_taken_where_a_module_says_so(setting, rounds):
    module, watch = Lowest(), Cohorts()
    settings = {"two of three": {"clients_per_round": 2}, "all at once": {"strategy": GeometricMedian()}}
    parts: Any = settings.get(setting, {"route": RingFed()} if setting == "ring" else {})
    data = Blobs(shuffle=False)
    federate(module, rounds, watch, data=data, **parts)
    own = torch.split(data.train[0], SIZES)
    seen = torch.cat([own[client] for client in sorted({k for cohort in watch.seen for k in cohort})])
    assert torch.equal(module.low, seen.min(0).values)


def test_observers_of_quantization_reach_the_server():
    data, module = Blobs(shuffle=False), Unusual()
    federate(module, 2, data=data, local=LocalTraining())
    x = data.train[0]
    assert module.whole.min_val == x.min()
    assert module.whole.max_val == x.max()
    assert torch.equal(module.channels.min_val, x.min(0).values)
    assert torch.equal(module.channels.max_val, x.max(0).values)
    assert x.min() < module.mean.min_val < 0 < module.mean.max_val < x.max()


@pytest.mark.parametrize("engine", tier_1(ENGINES[:2], "fabric"))
@pytest.mark.parametrize("rule", ["FedProx", "SCAFFOLD", "FedDyn"])
def test_sparse_gradients_are_those_of_dense_ones(rule, engine):
    local = LocalTraining(engine=engine, proximal_mu=0.3 * (rule == "FedProx"))
    strategy = {"SCAFFOLD": Scaffold, "FedDyn": FedDyn}.get(rule, FedAvg)
    dense, sparse = (tensors(fitted(partial(Words, kind), 3, strategy=strategy(), local=local)) for kind in (False, True))
    assert all(torch.allclose(tensor, sparse[name], 0, 1e-6) for name, tensor in dense.items())


def test_an_optimizer_may_need_sparse_gradients():
    assert federate(SPARSE(), 1).global_step == 1


def test_setup_may_read_a_batch():
    def setup(self: Any, stage: str) -> None:
        x, _ = next(iter(self.trainer.datamodule.train_dataloader()))
        self.width = x.shape[1]

    module = variant(setup=setup)()
    assert federate(module, 2).global_step == 2
    assert module.width == 4


class BoringData(BoringDataModule):
    def __init__(self) -> None:
        super().__init__()

    def val_dataloader(self) -> Any:
        return DataLoader(self.random_val)


@pytest.mark.parametrize("kind", [BoringModel, ManualOptimBoringModel])
def test_lightnings_boring_model(kind):
    """Also the one with its own backward and step, and no loss that Lightning sees."""
    module = kind()
    before = weights(module)
    run = federate(module, 2, data=BoringData(), partitioner=IIDPartitioner(4), local=LocalTraining(proximal_mu=0.1))
    assert run.global_step == 2
    assert not torch.equal(module.layer.weight, before["layer.weight"])
