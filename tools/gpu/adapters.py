"""LoRA by peft: adapters are trained and sent, what is below them is not."""

from __future__ import annotations

import importlib.util
from typing import Any

import lightning as L
import torch
from federations import trainer, weights
from torch import Tensor, nn

from fl_lightning import ClassificationTask, FederatedDataModule, FederatedOrchestrator, IIDPartitioner, LocalTraining
from gpu.setting import Findings, NotRunError, Setting


class Transformer(nn.Module):
    """A small encoder over the rows of an image.

    Args:
        width: of the tokens.
        layers: number of encoder layers.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(28, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(width), "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)})
            for _ in range(layers)
        )
        self.mix = nn.ModuleList(nn.Linear(28, 28) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        tokens = self.embed(images.flatten(1, 2))
        for block, mix in zip(self.blocks, self.mix, strict=True):
            tokens = tokens + mix(tokens.transpose(1, 2)).transpose(1, 2)
            tokens = tokens + block["down"](nn.functional.gelu(block["up"](block["norm"](tokens))))
        logits: Tensor = self.head(tokens.mean(1))
        return logits


def lora(setting: Setting, found: Findings) -> None:
    """Train adapters with the base frozen: the base keeps its bits, and only the adapters are sent."""
    if importlib.util.find_spec("peft") is None:
        raise NotRunError("peft is not installed")
    from peft import LoraConfig, inject_adapter_in_model

    from gpu.state_on_device import Pictures

    for precision in ("32-true", "bf16-mixed"):
        L.seed_everything(0, verbose=False)
        config = LoraConfig(r=4, target_modules=["up", "down", "embed"], modules_to_save=None)
        network: Any = inject_adapter_in_model(config, Transformer(setting.of(256, 32), setting.of(6, 2)))
        for parameter in network.head.parameters():
            parameter.requires_grad = True
        task = ClassificationTask(network, 10, None, lambda p: torch.optim.AdamW(p, lr=2e-3))
        before = {name: tensor.clone() for name, tensor in weights(task).items()}
        local: Any = LocalTraining(precision=precision, engine="fabric")
        data = Pictures(setting.of(2000, 60), setting.of(500, 20), batch_size=20)
        run = trainer(setting.of(4, 1), FederatedOrchestrator(local=local), accelerator=setting.accelerator, devices=1)
        run.fit(task, FederatedDataModule(data, IIDPartitioner(4)))
        trained = {name for name, parameter in task.named_parameters() if parameter.requires_grad}
        after = weights(task)
        moved = {name for name, value in after.items() if not torch.equal(value.cpu(), before[name].cpu())}
        size = sum(parameter.numel() for parameter in task.parameters() if parameter.requires_grad)
        sent = float(run.callback_metrics.get("federation/bytes_up", 0))
        found[precision] = {
            "val_accuracy": float(run.callback_metrics["val_accuracy"]),
            "trained": size,
            "all": sum(parameter.numel() for parameter in task.parameters()),
            "bytes_up": sent,
        }
        base = sorted(name for name in moved & {name for name, _ in task.named_parameters()} if name not in trained)
        found.require(not base, f"{precision}: the frozen base has moved: {base[:3]}")
        found.require(any("lora" in name for name in moved), f"{precision}: no adapter has moved")
        found.require(sent == 4 * size * 4, f"{precision}: {sent:g} bytes were sent instead of {4 * size * 4}")
