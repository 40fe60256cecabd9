"""Memory of the device: by the number of clients, and when there is not enough."""

from __future__ import annotations

import resource
from typing import Any

import torch
from benchmark_loop import Plain as Simple
from benchmark_loop import Sizes
from benchmark_scale import Features
from federations import Plain, federate, trainer
from torch import Tensor, nn

from fl_lightning import Faults, FederatedDataModule, FederatedOrchestrator, LocalTraining
from gpu.setting import Findings, Setting


def by_clients(setting: Setting, found: Findings) -> None:
    """Peak memory of ten clients a round out of ever more: it grows with the data, not with the clients."""
    numbers = (10, 100, 1000, 5000) if not setting.small else (10, 50)
    beyond = {}
    for number in numbers:
        data = Features(100 * number)
        size = sum(tensor.nbytes for tensor in data.tensors)
        if setting.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        federation = FederatedOrchestrator(local=LocalTraining(engine="fabric"), clients_per_round=10)
        run = trainer(3, federation, accelerator=setting.accelerator, devices=1)
        run.fit(Simple(net), FederatedDataModule(data, Sizes([100] * number)))
        if setting.device == "cuda":
            peak = torch.cuda.max_memory_allocated()
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        beyond[number] = peak - size
        found[f"{number} clients"] = {"peak_mib": round(peak / 2**20, 1), "data_mib": round(size / 2**20, 1)}
    if setting.device == "cuda":
        first, last = beyond[numbers[0]], beyond[numbers[-1]]
        found["beyond_data_mib"] = {number: round(value / 2**20, 1) for number, value in beyond.items()}
        found.require(last < 1.25 * first + 8 * 2**20, f"beyond the data: {first / 2**20:.0f} to {last / 2**20:.0f} MiB")


class Greedy(Plain):
    """One client asks for more memory than any device has."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Ask, where the client has four batches."""
        if self.trainer.num_training_batches == 4:
            torch.empty(2**50, device=self.device)
        return super().training_step(batch, batch_idx)


def exhausted(setting: Setting, found: Findings) -> None:
    """A client that runs out of the GPU's memory is left out of the round, and the others train on."""
    for engine in ("trainer", "fabric"):
        module = Greedy()
        local: Any = LocalTraining(engine=engine)
        run = federate(module, 2, local=local, faults=Faults("skip"), accelerator=setting.accelerator)
        failed = float(run.callback_metrics.get("federation/failures", -1))
        found[engine] = {"failures": failed, "rounds": run.global_step}
        found.require(run.global_step == 2, f"{engine}: {run.global_step} rounds")
        found.require(failed == 1, f"{engine}: {failed:g} clients failed in the last round instead of 1")
        finite = all(bool(torch.isfinite(parameter).all()) for parameter in module.parameters())
        found.require(finite, f"{engine}: weights are not finite")
