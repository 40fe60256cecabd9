"""Modules of other packages, unchanged, with tiny random data and weights; nothing is downloaded."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

TRAIN, VAL, BATCH = 12, 6, 4


@dataclass(frozen=True)
class Case:
    """One module of another package.

    Attributes:
        packages: what it imports.
        make: builds the module, after torch has been seeded.
        sets: returns its training and validation sets and the function that collates their examples.
        metric: a metric that it logs in validation.
        mode: whether the higher metric is better.
        trusted: the classes in its checkpoints that are not plain values.
        load: the arguments that its ``load_from_checkpoint`` needs besides the path.
        bound: the largest difference from plain training in the oracle.
        double: whether it trains in float64.
    """

    packages: tuple[str, ...]
    make: Callable[[], L.LightningModule]
    sets: Callable[[], tuple[Any, Any, Any]]
    metric: str
    mode: str = "min"
    trusted: tuple[str, ...] = ()
    load: Callable[[], dict[str, Any]] = dict
    bound: float = 1e-12
    double: bool = True

    @property
    def is_installed(self) -> bool:
        return all(find_spec(package) is not None for package in self.packages)


class Loaders(L.LightningDataModule):
    """What a user would write around the sets: a training loader and a validation loader."""

    def __init__(self, case: Case, shuffle: bool = True) -> None:
        super().__init__()
        self.train, self.val, collate = case.sets()
        # Generators of their own: a DataLoader draws a seed for its workers, which must not move the module's numbers.
        self.settings: dict[str, Any] = {"batch_size": BATCH, "collate_fn": collate}
        self.shuffle = shuffle

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, shuffle=self.shuffle, generator=torch.Generator(), **self.settings)

    def val_dataloader(self) -> Any:
        return DataLoader(self.val, generator=torch.Generator(), **self.settings)


class Records(Dataset[dict[str, Tensor]]):
    """Examples as dictionaries of tensors, as torchgeo's and transformers' datasets return them."""

    def __init__(self, **columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- chemprop


def chemprop_module() -> L.LightningModule:
    from chemprop import nn as parts
    from chemprop.models import MPNN

    passing = parts.BondMessagePassing(d_h=8, depth=2, dropout=0.1)
    return MPNN(passing, parts.MeanAggregation(), parts.RegressionFFN(input_dim=8, hidden_dim=8), batch_norm=True)


def molecules() -> tuple[Any, Any, Any]:
    from chemprop import data

    smiles = ["C" * (k % 5 + 1) + "O" * (k % 2) + "N" * (k % 3 == 0) for k in range(TRAIN + VAL)]
    points = [data.MoleculeDatapoint.from_smi(text, [len(text) + 0.1 * k]) for k, text in enumerate(smiles)]
    return data.MoleculeDataset(points[:TRAIN]), data.MoleculeDataset(points[TRAIN:]), data.dataloader.collate_batch


# ---------------------------------------------------------------- pytorch-forecasting


def series(train: bool) -> Any:
    import pandas
    from pytorch_forecasting import TimeSeriesDataSet
    from pytorch_forecasting.data import NaNLabelEncoder

    steps = 8
    table = pandas.DataFrame(
        {
            "time": list(range(steps)) * 3,
            "value": (10 * drawn(1 if train else 2, 3 * steps)).tolist(),
            "shop": [name for name in "abc" for _ in range(steps)],
        }
    )
    return TimeSeriesDataSet(
        table,
        time_idx="time",
        target="value",
        group_ids=["shop"],
        max_encoder_length=4,
        max_prediction_length=1 if train else 3,
        time_varying_unknown_reals=["value"],
        categorical_encoders={"shop": NaNLabelEncoder().fit(table["shop"])},
        static_categoricals=["shop"],
    )


def transformer_of_series() -> L.LightningModule:
    from pytorch_forecasting import TemporalFusionTransformer

    return TemporalFusionTransformer.from_dataset(
        series(train=True), hidden_size=4, attention_head_size=1, hidden_continuous_size=4, dropout=0.1, log_interval=2
    )


def shops() -> tuple[Any, Any, Any]:
    train = series(train=True)
    return train, series(train=True), train._collate_fn  # to_dataloader passes the same function


# ---------------------------------------------------------------- segmentation-models-pytorch


def segmentation() -> L.LightningModule:
    """A module as in the package's example on segmenting pets, without its pretrained weights."""
    import segmentation_models_pytorch as smp

    class PetModel(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = smp.Unet(
                "timm-mobilenetv3_small_minimal_100",
                encoder_weights=None,
                encoder_depth=3,
                decoder_channels=(8, 8, 4),
                in_channels=3,
                classes=1,
            )
            params = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
            self.register_buffer("std", torch.tensor(params["std"]).view(1, 3, 1, 1))
            self.register_buffer("mean", torch.tensor(params["mean"]).view(1, 3, 1, 1))
            self.loss_fn = smp.losses.DiceLoss(smp.losses.BINARY_MODE, from_logits=True)
            self.outputs: dict[str, list[Any]] = {"train": [], "valid": []}

        def shared_step(self, batch: Any, stage: str) -> dict[str, Tensor]:
            logits = self.model((batch["image"] - self.mean) / self.std)
            counts = smp.metrics.get_stats((logits.sigmoid() > 0.5).long(), batch["mask"].long(), mode="binary")
            self.outputs[stage].append({"loss": self.loss_fn(logits, batch["mask"]), "counts": torch.stack(counts)})
            return self.outputs[stage][-1]

        def shared_epoch_end(self, stage: str) -> None:
            counts = torch.cat([x["counts"] for x in self.outputs[stage]], dim=1)
            self.log(f"{stage}_dataset_iou", smp.metrics.iou_score(*counts, reduction="micro"), prog_bar=True)
            self.outputs[stage].clear()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.shared_step(batch, "train")

        def on_train_epoch_end(self) -> None:
            self.shared_epoch_end("train")

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return self.shared_step(batch, "valid")

        def on_validation_epoch_end(self) -> None:
            self.shared_epoch_end("valid")

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=2e-4)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=1e-5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step", "frequency": 1}}

    return PetModel()


def pets() -> tuple[Any, Any, Any]:
    sets = [
        Records(image=drawn(s, n, 3, 32, 32), mask=(drawn(s + 9, n, 1, 32, 32) > 0.5).float())
        for s, n in ((1, TRAIN), (2, VAL))
    ]
    return *sets, None


# ---------------------------------------------------------------- torchgeo


def scene_classifier() -> L.LightningModule:
    from torchgeo.trainers import ClassificationTask

    return ClassificationTask(model="test_resnet", in_channels=3, task="multiclass", num_classes=2)


def scenes() -> tuple[Any, Any, Any]:
    sets = [Records(image=drawn(s, n, 3, 32, 32), label=torch.arange(n) % 2) for s, n in ((1, TRAIN), (2, VAL))]
    return *sets, None


def scene_byol() -> L.LightningModule:
    from torchgeo.trainers import BYOLTask

    return BYOLTask(model="test_resnet", in_channels=3)


# ---------------------------------------------------------------- transformers and peft


def tiny_bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=2,
        hidden_dropout_prob=0.1,
    )
    return BertForSequenceClassification(config)


class GLUETransformer(L.LightningModule):
    """The module of Lightning's tutorial on transformers, with a random tiny network instead of a pretrained one."""

    def __init__(self, learning_rate: float = 2e-3, warmup_steps: int = 3, weight_decay: float = 0.01) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = self.network()
        self.outputs: list[Any] = []

    def network(self) -> nn.Module:
        return tiny_bert()

    def forward(self, **inputs: Tensor) -> Any:
        return self.model(**inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(**batch)[0]

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        val_loss, logits = self(**batch)[:2]
        self.outputs.append({"loss": val_loss, "preds": logits.argmax(1), "labels": batch["labels"]})

    def on_validation_epoch_end(self) -> None:
        preds, labels = (torch.cat([x[name] for x in self.outputs]) for name in ("preds", "labels"))
        self.log("val_loss", torch.stack([x["loss"] for x in self.outputs]).mean(), prog_bar=True)
        self.log("accuracy", (preds == labels).float().mean(), prog_bar=True)
        self.outputs.clear()

    def configure_optimizers(self) -> Any:
        from transformers import get_linear_schedule_with_warmup

        no_decay = ["bias", "LayerNorm.weight"]
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        groups = [
            {"params": [p for n, p in named if not any(nd in n for nd in no_decay)], "weight_decay": self.hparams.weight_decay},
            {"params": [p for n, p in named if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self.hparams.learning_rate, eps=1e-8)
        scheduler = get_linear_schedule_with_warmup(
            optimizer, num_warmup_steps=self.hparams.warmup_steps, num_training_steps=self.trainer.estimated_stepping_batches
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step", "frequency": 1}]


class LoRATransformer(GLUETransformer):
    """The same network, frozen, with adapters of peft."""

    def network(self) -> nn.Module:
        from peft import LoraConfig, TaskType, get_peft_model

        config = LoraConfig(TaskType.SEQ_CLS, r=2, lora_alpha=4, lora_dropout=0.1, target_modules=["query", "value"])
        return get_peft_model(tiny_bert(), config)


def sentences() -> tuple[Any, Any, Any]:
    sets = []
    for seed, size in ((1, TRAIN), (2, VAL)):
        tokens = (drawn(seed, size, 8) * 50).long()
        sets.append(Records(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens[:, 0] % 2))
    return *sets, None


# ---------------------------------------------------------------- lightly


class MoCo(L.LightningModule):
    """The module of lightly's example of MoCo with a smaller backbone; a loss in validation is added.

    Each client keeps its memory bank, as docs/rounds.md says.
    """

    def __init__(self) -> None:
        import copy

        from lightly.loss import NTXentLoss
        from lightly.models.modules import MoCoProjectionHead
        from lightly.models.utils import deactivate_requires_grad

        super().__init__()
        convolution = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.backbone, self.projection_head = convolution, MoCoProjectionHead(8, 16, 8)
        self.criterion = NTXentLoss(memory_bank_size=(16, 8))
        self.criterion.memory_bank.client_state = ("bank", "bank_ptr")
        self.backbone_momentum = copy.deepcopy(self.backbone)
        self.projection_head_momentum = copy.deepcopy(self.projection_head)
        deactivate_requires_grad(self.backbone_momentum)
        deactivate_requires_grad(self.projection_head_momentum)

    def compared(self, batch: Any) -> Tensor:
        x_query, x_key = batch[0]
        query = self.projection_head(self.backbone(x_query).flatten(start_dim=1))
        key = self.projection_head_momentum(self.backbone_momentum(x_key).flatten(start_dim=1)).detach()
        return self.criterion(query, key)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        from lightly.models.utils import update_momentum
        from lightly.utils.scheduler import cosine_schedule

        momentum = cosine_schedule(self.current_epoch, 10, 0.996, 1)
        update_momentum(self.backbone, self.backbone_momentum, m=momentum)
        update_momentum(self.projection_head, self.projection_head_momentum, m=momentum)
        return self.compared(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", 1 + self.compared(batch))  # a cosine, from -1, otherwise

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.06)


class Pairs(Dataset[Any]):
    """Two views of each image, its label and its file name, as lightly's datasets return them."""

    def __init__(self, size: int, seed: int) -> None:
        self.images = drawn(seed, 2, size, 3, 16, 16)

    def __len__(self) -> int:
        return self.images.shape[1]

    def __getitem__(self, index: int) -> Any:
        return list(self.images[:, index]), 0, f"{index}.png"


def pairs() -> tuple[Any, Any, Any]:
    return Pairs(TRAIN, 1), Pairs(VAL, 2), None


OF_CHEMPROP = tuple(
    f"chemprop.nn.{name}"
    for name in (
        "agg.MeanAggregation",
        "message_passing.base.BondMessagePassing",
        "predictors.RegressionFFN",
        "utils.Activation",
    )
)
OF_PYTORCH_FORECASTING = (
    *("numpy._core.multiarray._reconstruct", "numpy._core.multiarray.scalar", "numpy.dtype", "numpy.ndarray"),
    *(f"numpy.dtypes.{name}DType" for name in ("Float64", "Int64", "Str")),
    *(f"pytorch_forecasting.data.encoders.{name}" for name in ("GroupNormalizer", "NaNLabelEncoder")),
    *(f"pytorch_forecasting.metrics.point.{name}" for name in ("MAE", "MAPE", "RMSE", "SMAPE")),
    "pytorch_forecasting.metrics.quantile.QuantileLoss",
    "torch.nn.modules.container.ModuleList",
    *("torchmetrics.metric.jit_distributed_available", "torchmetrics.utilities.data.dim_zero_sum"),
)
"""The classes in the modules' hyperparameters, which the message before the first round names."""

CASES = {
    "chemprop: MPNN": Case(  # its graphs are float32 in any precision
        ("chemprop",), chemprop_module, molecules, "val_loss", trusted=OF_CHEMPROP, bound=1e-6, double=False
    ),
    "pytorch-forecasting: TemporalFusionTransformer": Case(
        ("pytorch_forecasting",),
        transformer_of_series,
        shops,
        "val_loss",
        trusted=OF_PYTORCH_FORECASTING,
        load=lambda: {"weights_only": False},
    ),
    "segmentation-models-pytorch: Unet": Case(("segmentation_models_pytorch",), segmentation, pets, "valid_dataset_iou", "max"),
    "torchgeo: ClassificationTask": Case(("torchgeo",), scene_classifier, scenes, "val_OverallAccuracy", "max"),
    "transformers: BERT": Case(("transformers",), GLUETransformer, sentences, "accuracy", "max"),
    "peft: LoRA": Case(("transformers", "peft"), LoRATransformer, sentences, "accuracy", "max"),
    "lightly: MoCo": Case(("lightly",), MoCo, pairs, "val_loss"),
}
