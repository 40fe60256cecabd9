"""Federated K-means: wrong settings, data that gives no centroids, and what it does not go with."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import lightning as L
import torch
from federations import Blobs, NoValidation, Plain, blobs, trainer
from refusing import Refusal, fitting
from torch.utils.data import DataLoader, TensorDataset

import fl_lightning as fl
from fl_lightning.types import ClientUpdate, RoundStart, Snapshot


def of(module: Any = None, strategy: Any = None, data: Any = None, **more: Any) -> Any:
    """A fit of K-means with these settings; those of ``local`` may be given by name."""
    names = ("proximal_mu", "lr_decay", "gradient_clip_val", "accumulate_grad_batches", "privacy", "engine", "precision")
    local = fl.LocalTraining(**{name: more.pop(name) for name in names if name in more})
    return fitting(
        module=lambda: module or fl.KMeansTask(3, 4), strategy=strategy or fl.FederatedKMeans(), data=data, local=local, **more
    )


def alone(module: Any, data: Any) -> Any:
    """Training by a plain Trainer."""
    return lambda: trainer(1).fit(module, data)


def counting(wrong: float) -> Any:
    """An update whose second count is this."""
    strategy = fl.FederatedKMeans()
    strategy.start_round(RoundStart(0, (0,), 1, torch.zeros(4), 2))
    state = Snapshot(torch.tensor([2.0, 2.0, 3.0, wrong]), torch.zeros(0))
    return lambda: strategy.accumulate(ClientUpdate(0, 0, 3, 1, model=state), fl.Sums())


def held_out(*rows: list[float]) -> Blobs:
    """Data whose validation set has these examples over and over."""
    data = Blobs()
    data.val = (torch.tensor(rows).repeat(20, 1), torch.zeros(20 * len(rows)).long())
    return data


def spoilt() -> Blobs:
    """Data of which a training example is not a number."""
    data = Blobs()
    data.train[0][3, 1] = torch.nan
    return data


def on_two_ranks() -> None:
    with patch.object(L.Trainer, "world_size", property(lambda self: 2)):
        trainer(1).fit(fl.KMeansTask(2, 4), DataLoader(TensorDataset(blobs(9, 1)[0]), batch_size=3))


NO_SET = "'model.init' is kmeans++, which draws ... there is no such set. Add a 'val_dataloader'"
TOO_WIDE = "'model.num_features' is 5, but an example has 4 numbers. Set it to 4, or use other data"
ROUTE = "Remove 'federation.server_optimizer', and set 'federation.route' to ServerRoute"
NO_CENTROIDS = "needs a module with K centroids and their K counts, ... Set 'model' to KMeansTask"

REFUSALS = [
    # settings out of their range
    Refusal(of(proximal_mu=0.1), "'federation.local.proximal_mu' must be 0.0 with KMeansTask, which has no"),
    Refusal(of(lr_decay=0.5), "'federation.local.lr_decay' must be 1.0 with KMeansTask"),
    Refusal(of(gradient_clip_val=1.0), "'federation.local.gradient_clip_val' must be null with KMeansTask"),
    Refusal(of(accumulate_grad_batches=2), "'federation.local.accumulate_grad_batches' must be 1 with"),
    Refusal(of(privacy=fl.ExamplePrivacy(1.0, 1.0)), "'federation.local.privacy' covers only the clients' models, but"),
    Refusal(of(engine="fabric"), "KMeansTask optimizes manually ... 'federation.local.engine' to 'trainer'"),
    Refusal(of(engine="stacked"), "KMeansTask optimizes manually ... 'federation.local.engine' to 'train"),
    Refusal(of(precision="bf16-true"), "counts examples, but torch.bfloat16 cannot ... Set 'trainer.precis"),
    # what it does not go with
    Refusal(of(strategy=fl.FedAvg()), "FedAvg does not know how many examples ... Set 'federation.strategy' to"),
    Refusal(of(Plain()), NO_CENTROIDS),
    Refusal(of(Plain(batchnorm=True)), NO_CENTROIDS),
    Refusal(of(route=fl.Mediators(2)), "FederatedKMeans needs each client to train by itself"),
    Refusal(of(route=fl.WarmStart(1)), ROUTE),
    Refusal(of(server_optimizer=lambda p: torch.optim.SGD(p, lr=1e-3)), ROUTE),
    Refusal(counting(0.5), "client 0 sent averaged buffers that are not counts"),
    Refusal(counting(-1.0), "client 0 sent averaged buffers that are not counts"),
    Refusal(on_two_ranks, "runs in one process, but this run has 2. Set 'trainer.devices' to 1"),
    # data that gives no centroids
    Refusal(of(fl.KMeansTask(41, 4)), "'model.num_clusters' must be at most the clients' 40 training examples, but"),
    Refusal(of(fl.KMeansTask(2, 5)), TOO_WIDE),
    Refusal(of(fl.KMeansTask(2, 5, "random")), TOO_WIDE),
    Refusal(alone(fl.KMeansTask(2, 5, "random"), Blobs()), TOO_WIDE),
    Refusal(of(data=NoValidation()), NO_SET),
    Refusal(alone(fl.KMeansTask(2, 4), NoValidation()), NO_SET.partition(". Add")[0]),
    Refusal(of(data=held_out([1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0])), "found 2 different examples among", fl.DataError),
    Refusal(
        of(data=held_out([1.0, torch.nan, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0])),
        "The validation set has numbers that are not finite",
        fl.DataError,
    ),
    Refusal(alone(fl.KMeansTask(3, 4), spoilt()), "training examples have numbers that are not finite", fl.ClientError),
]
