"""Fine-tune a transformer in a federation with LoRA, so that only adapters travel; needs transformers and peft."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForSequenceClassification, BertConfig


class Sentences(Dataset[dict[str, Tensor]]):
    """Random token ids; the first one decides the class."""

    def __init__(self, size: int, seed: int) -> None:
        self.tokens = torch.randint(0, 1000, (size, 16), generator=torch.Generator().manual_seed(seed))
        self.targets = (self.tokens[:, 0] % 2).tolist()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": torch.tensor(self.targets[index])}


class SentenceData(L.LightningDataModule):
    """Serve random sentences; replace it with your tokenized data."""

    def train_dataloader(self) -> Any:
        """Return the training sentences."""
        return DataLoader(Sentences(64, 1), batch_size=8, shuffle=True)

    def val_dataloader(self) -> Any:
        """Return the validation sentences."""
        return DataLoader(Sentences(32, 2), batch_size=32)


class SequenceClassifier(L.LightningModule):
    """Classify sequences with a transformer, of which only adapters and the head are trained.

    Args:
        pretrained: a name or folder for ``from_pretrained``; None for a small network with random weights.
        rank: the rank of the adapters, >= 1; 0 trains the whole network.
        learning_rate: the rate of AdamW, > 0.
    """

    def __init__(self, pretrained: str | None = None, rank: int = 4, learning_rate: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        small = BertConfig(vocab_size=1000, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512)
        network: Any = (
            AutoModelForSequenceClassification.from_config(small)
            if pretrained is None
            else AutoModelForSequenceClassification.from_pretrained(pretrained)
        )
        network.eval()  # as from_pretrained returns it: what is frozen then counts as constant
        if rank:
            adapters = LoraConfig(TaskType.SEQ_CLS, r=rank, lora_alpha=2 * rank, target_modules=["query", "value"])
            network = get_peft_model(network, adapters)
        self.network = network

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        loss: Tensor = self.network(**batch).loss
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log loss and accuracy."""
        found = self.network(**batch)
        self.log("val_loss", found.loss)
        self.log("val_accuracy", (found.logits.argmax(1) == batch["labels"]).float().mean())

    def configure_optimizers(self) -> Any:
        """Return AdamW over what is trained."""
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(trained, lr=self.hparams["learning_rate"])
