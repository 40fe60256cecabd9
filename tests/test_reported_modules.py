"""Modules of other people's bug reports: what plain Lightning does right with them, a federation does too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from federations import Blobs, Consecutive, Plain, federate, trainer
from torch import Tensor, nn

from fl_lightning import ClientEvaluation, FederatedDataModule, FederatedOrchestrator, LocalTraining

ENGINES = ("trainer", "fabric", "stacked")


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers, whatever ``state_dict`` says."""
    return {name: t.detach().clone() for name, t in (*module.named_parameters(), *module.named_buffers())}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=tolerance, msg=name)


# ---------------------------------------------------------------- what state_dict leaves out


class Normalised(Plain):
    def __init__(self, **more: Any) -> None:
        super().__init__(batchnorm=True, **more)


class WithoutStatistics(Normalised):
    """Leaves BatchNorm's statistics out of checkpoints."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {name: value for name, value in super().state_dict(*args, **kwargs).items() if "running" not in name}


class WithHook(Normalised):
    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(self._remove)

    @staticmethod
    def _remove(module: Any, state: Any, prefix: Any, metadata: Any) -> None:
        for name in [name for name in state if "running" in name]:
            del state[name]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [WithoutStatistics, WithHook])
def test_statistics_that_state_dict_leaves_out_are_averaged(kind, engine, recwarn):
    found = []
    for make in (Normalised, kind):
        torch.manual_seed(3)
        module = make()
        federate(module, 2, local=LocalTraining(engine=engine))
        found.append(tensors(module))
    assert_same(*found)
    assert float(found[1]["net.1.running_mean"].abs().max()) > 0.1
    assert not [one for one in recwarn if "not persistent" in str(one.message)]


class Builds(Normalised):
    """Builds its network in ``setup``, again for each evaluation, and saves none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.built = self.net
        self.net = nn.Identity()

    def setup(self, stage: str) -> None:
        torch.manual_seed(5)
        self.net = type(self.built)(*(part.__class__(*_sizes(part)) for part in self.built))


class SavesNothing(Builds):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {}


def _sizes(part: nn.Module) -> tuple[int, ...]:
    if isinstance(part, nn.Linear):
        return part.in_features, part.out_features
    return (part.num_features,) if isinstance(part, nn.BatchNorm1d) else ()


def test_the_scores_of_a_module_that_saves_nothing_are_those_of_its_weights(tmp_path):
    scores = []
    for kind in (Builds, SavesNothing):
        torch.manual_seed(3)
        federation = FederatedOrchestrator(client_evaluation=ClientEvaluation(1, "val_loss"))
        data = FederatedDataModule(Blobs(), Consecutive(), client_test=0.3)
        fitted = trainer(2, federation, default_root_dir=tmp_path)
        fitted.fit(kind(), data)
        scores.append(float(fitted.callback_metrics["federation/client_mean"]))
    assert scores[0] == scores[1]
