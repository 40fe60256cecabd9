"""Pure functions: what cannot be summed, drawn, averaged or bounded."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from federations import Plain
from refusing import Refusal, fitting

import fl_lightning as fl
from fl_lightning.functional import ExactSum, ModelState, Sums, cohort_size
from fl_lightning.functional.canaries import audited_epsilon
from fl_lightning.functional.keyed_noise import SecretKey

CENTRAL, LOCAL = fl.ClientPrivacy(0.05, 1.0), fl.ClientPrivacy(0.05, 1.0, "local")
EXAMPLES = fl.LocalTraining(privacy=fl.ExamplePrivacy(1.0, 1.0))
HEAD = fl.PersonalPart(names="net.2.*")
ALL_PRIVACY: list[dict[str, Any]] = [{"transforms": [CENTRAL]}, {"transforms": [LOCAL]}, {"local": EXAMPLES}]


class Inherits(fl.FedAvg):
    """Counts client 0 ten times."""

    def weight(self, update: Any) -> float:
        return 10.0 if update.client == 0 else 1.0


class Declares(fl.FedAvg):
    """FedAvg under another name."""

    private_with = ("central", "local", "examples")


class Scales(fl.ClipUpdate):
    """Increases the average at the server."""

    def receive(self, change: torch.Tensor, *rest: Any) -> torch.Tensor:
        return 10 * change


class Unclipped(fl.ClientPrivacy):
    """Forgets to clip."""

    def apply(self, message: Any, sender: Any) -> Any:
        return message


class OwnRoute(fl.ServerRoute):
    """Could hand anything to anyone."""


class WithRange(Plain):
    """Has the smallest input, which is taken over the clients."""

    extreme_buffers = {"smallest": "min"}

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("smallest", torch.full((4,), torch.inf))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.smallest.copy_(torch.minimum(self.smallest, batch[0].amin(0)))
        return super().training_step(batch, batch_idx)


def private(**settings: Any) -> Any:
    """A fit of FedAvg that does not weigh by examples, unless another strategy is given."""
    return fitting(**{"strategy": fl.FedAvg("uniform"), **settings})


def on_scaled_table(settings: dict[str, Any]) -> Any:
    """The same on a table whose columns all clients' rows have scaled."""

    def run() -> None:
        rows = "a,b,y\n" + "".join(f"{k},{k * k},{k % 2}\n" for k in range(40))
        with open("rows.csv", "w", encoding="utf-8") as file:
            file.write(rows)
        data = fl.TableDataModule("rows.csv", "y", kind="classification", test_share=0.0)
        private(data=data, **settings)()

    return run


REFUSALS = [
    # sums, cohorts, models, guesses, keys
    *(
        Refusal(
            lambda bad=bad: ExactSum(2).add(torch.tensor([1.0, bad])),
            "cannot be summed exactly. Lower the clients' learning rate",
            fl.ClientError,
        )
        for bad in (math.nan, 1e13)
    ),
    Refusal(lambda: Sums().add("n", math.nan), "cannot be summed exactly", fl.ClientError),
    Refusal(lambda: Sums().add("n", 2.0**42), "cannot be summed exactly", fl.ClientError),
    *(
        Refusal(lambda asked=asked: cohort_size(7, asked), "'federation.clients_per_round' must be ... but is")
        for asked in (0, 8, -1, 0.0, 1.5)
    ),
    Refusal(lambda: ModelState(torch.nn.ReLU()).vector(), "no trainable parameters, so there is nothing to federate"),
    Refusal(lambda: ModelState(torch.nn.LazyLinear(3)), "'weight' is not an initialised floating-point tensor"),
    *(
        Refusal(lambda wrong=wrong: audited_epsilon(*wrong), "'correct' must be 0 to guesses")
        for wrong in ((5, 4, 10), (-1, 4, 10), (4, 12, 10))
    ),
    Refusal(lambda: audited_epsilon(1, 2, 3, confidence=1.0), "'confidence' must be"),
    Refusal(lambda: SecretKey(bytes(31)), "A key has 32 bytes, not 31", ValueError),
    *(
        Refusal(
            lambda wrong=wrong: fl.FlowerPartitioner(wrong), f"'data.partitioner.partitioner' ... is a {type(wrong).__name__}."
        )
        for wrong in (fl.IIDPartitioner(3), "flwr_datasets.partitioner.IidPartitioner")
    ),
    # what no clipping bounds
    Refusal(private(strategy=Inherits("uniform"), transforms=[CENTRAL]), "Inherits does not declare that it computes it ...,"),
    Refusal(private(strategy=Inherits(), transforms=[LOCAL]), "Inherits does not declare that it reads nothing else ..., set"),
    Refusal(private(strategy=Inherits(), local=EXAMPLES), "'federation.local.privacy' covers only ... = (\"examples\",)' in"),
    Refusal(private(strategy=Declares(), transforms=[CENTRAL]), "Declares weighs by 'examples'"),
    Refusal(private(strategy=fl.FedExP(), transforms=[CENTRAL]), "but FedExP combines models in another way"),
    Refusal(private(transforms=[Scales(1.0), CENTRAL]), "Scales changes the average at the server ('receive') before"),
    Refusal(private(transforms=[Unclipped(0.05, 1.0)]), "Unclipped is a subclass of ClientPrivacy"),
    Refusal(private(transforms=[LOCAL], route=OwnRoute()), "ClientPrivacy covers only ... 'federation.route' is OwnRoute"),
    Refusal(private(transforms=[CENTRAL], route=fl.FedCyclic()), "on the route FedCyclic clients pass models to each other"),
    *(
        Refusal(private(**settings, personal=[replace(HEAD, start="mean")]), f"'mean', ... but {who} does")
        for settings, who in zip(ALL_PRIVACY, ("ClientPrivacy", "ClientPrivacy", "'federation.local.privacy'"), strict=True)
    ),
    *(Refusal(private(module=WithRange, **settings), "smallest") for settings in ALL_PRIVACY),
    *(
        Refusal(on_scaled_table(settings), "'data.datamodule.standardize' is true, ... Set it to false")
        for settings in ALL_PRIVACY
    ),
]
