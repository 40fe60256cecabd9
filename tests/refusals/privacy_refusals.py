"""Differential privacy, and pure functions that it rests on."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from engine_runs import variant
from federations import Blobs, Consecutive, Plain, trainer
from refusing import Refusal, fitting, later, made
from torch import nn

import fl_lightning as fl
from fl_lightning.functional.exact_sum import ExactSum
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.scheduling import cohort_size
from fl_lightning.functional.sums import Sums

# ------ Differential privacy


UNIFORM, EXAMPLES = fl.FedAvg("uniform"), fl.LocalTraining(privacy=fl.ExamplePrivacy(1.0, 1.0))
WITH_TESTS = {"server_set": "clients", "client_test": 0.2}


def clients(*after: Any, data: Any = None, **settings: Any) -> Callable[[], Any]:
    """Fit with noise at the server, and what comes after it."""
    return divided(data, **{"strategy": UNIFORM, "transforms": [fl.ClientPrivacy(1.0, 1.0), *after], **settings})


def sent(data: Any = None, **settings: Any) -> Callable[[], Any]:
    """Fit with noise at the clients."""
    return divided(data, transforms=[fl.ClientPrivacy(1.0, 1.0, "local")], **settings)


def examples(data: Any = None, local: Any = None, **settings: Any) -> Callable[[], Any]:
    return divided(data, local=lambda: fl.LocalTraining(privacy=fl.ExamplePrivacy(1.0, 1.0), **(local or {})), **settings)


def private(**settings: Any) -> Any:
    """Fit FedAvg, which does not weigh by examples, unless another strategy is given."""
    return fitting(**{"strategy": UNIFORM, **settings})


@later
def divided(data: Any, module: Any = Plain, local: Any = fl.LocalTraining, folder: str = ".", **settings: Any) -> None:
    """Fit with settings of the data."""
    federation = fl.FederatedOrchestrator(local=local() if callable(local) else local, **settings)
    trainer(1, federation, default_root_dir=folder).fit(
        module(), fl.FederatedDataModule(Blobs(), Consecutive(), **(data or {}))
    )


def solved(rounds: int = 4, **settings: Any) -> Callable[[], Any]:
    """Fit with noise for an epsilon of clients."""
    noise = settings.pop("noise", "central")
    privacy = fl.ClientPrivacy(0.5, None, noise, **{"target_epsilon": 1.0, **settings.pop("more", {})})
    flags = {"max_time": "00:00:01:00"} if rounds == -1 else {}
    return fitting(strategy=UNIFORM, transforms=[privacy], rounds=rounds, flags=flags, **settings)


@later
def checked(loss: nn.Module) -> None:
    module = Plain()
    module.loss = loss
    fl.ExamplePrivacy(1.0, 1.0).check_module("32-true", module)


class With(Plain):
    """A module with another part."""

    def __init__(self, name: str, part: Any) -> None:
        super().__init__()
        if isinstance(part, torch.Tensor):
            self.register_buffer(name, part)
        else:
            setattr(self, name, part)


def given(name: str, make: Callable[[], Any], **methods: Any) -> Callable[[], Any]:
    return lambda: variant(With, **methods)(name, make())


def two_optimizers(self: Any) -> Any:
    half = list(self.parameters())
    return [torch.optim.SGD(half[:2], 0.1), torch.optim.SGD(half[2:], 0.1)]


ByHand = variant(automatic_optimization=False, configure_optimizers=two_optimizers)
Positions = given(
    "places",
    lambda: nn.Embedding(3, 4),
    forward=lambda self, x: self.net(x + self.places(torch.arange(3)).mean(dim=0)),  # without a batch in front
)


ADAPTIVE, SEEDED = fl.ClientPrivacy(0.5, 2.0, target_quantile=0.5), fl.ClientPrivacy(1.0, 1.0, noise_seed=7)
PRIVACY = [
    # settings of clients' privacy
    *(
        Refusal(lambda given=given: fl.ClientPrivacy(**{"max_norm": 0.5, "noise_multiplier": 2.0, **given}), words)
        for given, words in (
            ({"target_quantile": 0.5, "norm_rate": 0.0}, "'federation.transforms.norm_rate' must be above 0"),
            ({"target_quantile": 0.5, "noise": "local"}, "target_quantile' must be null with noise at the clients"),
            ({"target_quantile": 0.5, "count_noise": 1.0}, "'count_noise' is 1, but must be above 1, half of"),
        )
    ),
    # what it does not go with
    Refusal(clients(strategy=fl.AdaFed("val_acc")), "but AdaFed combines models in another way"),
    Refusal(clients(strategy=fl.FedAvg()), "but FedAvg weighs by 'examples'"),
    Refusal(sent(strategy=fl.Scaffold()), "Scaffold's clients send control variates with their models"),
    Refusal(sent({"client_validation": 0.2}, strategy=fl.FedLoss()), "FedLoss reads metrics that"),
    Refusal(clients(fl.Quantize()), "Quantize comes after ClientPrivacy and may increase the norm"),
    Refusal(clients(fl.ClientPrivacy(1.0, 1.0)), "contains ClientPrivacy more than once"),
    Refusal(clients(availability=fl.Availability(leave=0.1)), "because 'federation.availability.leave' is 0.1"),
    Refusal(clients(data={"rebalancing": fl.LabelAveraging()}), "'data.rebalancing' lets each client's label counts influence"),
    Refusal(clients(attackers=fl.Attackers(clients=[1], model=fl.ALIE())), "ALIE reads the honest clients' changes before"),
    Refusal(clients(data=WITH_TESTS), "'data.server_set' is clients, so the"),
    Refusal(clients(local=fl.LocalTraining(precision="bf16-true")), "'federation.local.precision' must be one of at least 32"),
    Refusal(clients(module=lambda: Plain(batchnorm=True)), "buffers net.1.running_mean, net.1.running_var, net.1"),
    Refusal(private(transforms=[ADAPTIVE], secure_aggregation=fl.SecureAggregation()), "counts the changes that were clipped"),
    Refusal(private(transforms=[SEEDED], local=EXAMPLES), "'noise_seed' of ClientPrivacy is 7, but ... is None. Set both to"),
    Refusal(clients(folder="memory://bucket"), "'trainer.default_root_dir' is memory://bucket, but the privacy ledger must"),
    # what examples' privacy does not go with
    Refusal(examples(route=fl.Mediators(2)), "The route Mediators evaluates clients' models on their tr"),
    Refusal(examples(WITH_TESTS), "'data.server_set' is clients, so the server"),
    Refusal(examples(local={"engine": "stacked"}), "'federation.local.engine' must be one of trainer, fabric, auto with"),
    Refusal(examples(local={"accumulate_grad_batches": 2}), "'federation.local.accumulate_grad_batches' must be 1 with"),
    Refusal(examples(local={"precision": "16-mixed"}), "'federation.local.precision' must be one of 32-true, 64-true,"),
    Refusal(examples({"rebalancing": fl.LabelAveraging()}), "'data.rebalancing' repeats examples"),
    Refusal(examples({"client_validation": 0.2}, strategy=fl.FedLoss()), "'federation.local.privacy' does not cover"),
    # modules that mix examples
    *(
        Refusal(examples(module=module), words)
        for module, words in (
            (lambda: Plain(batchnorm=True), "cannot separate an example's gradient from the others: net.1 (BatchNorm1d)"),
            (ByHand, "optimizes manually"),
            (variant(configure_optimizers=lambda self: None), "needs an optimizer, but Variant configures none. Return one"),
            (Positions, "found gradients of ... examples in one batch ... a layer of Variant does not have the batch"),
            (given("net", lambda: nn.RNN(4, 3)), "others: net (RNN). Use GroupNorm"),
            (given("loss", lambda: fl.ProximalLoss(fl.CrossEntropy(), 1.0)), "others: loss (ProximalLoss)"),
            (given("mean", lambda: torch.zeros(4)), "The clients send the buffers mean with the parameters"),
            (given("spare", lambda: nn.Linear(2, 2)), "a gradient for every trainable parameter, but 'spare.weight' does not"),
        )
    ),
    Refusal(checked(nn.CrossEntropyLoss(ignore_index=0)), "'ignore_index', which changes the number of examples"),
    Refusal(checked(nn.CrossEntropyLoss(reduction="sum")), "reduction 'sum' instead of 'mean'"),
    Refusal(checked(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))), "class weights, by whose sum the loss is divided"),
    # targets
    *(
        Refusal(lambda make=make, more=more: make(1.0, **more), "needs exactly one of 'noise_multiplier' and")
        for make in (fl.ClientPrivacy, fl.ExamplePrivacy)
        for more in ({}, {"noise_multiplier": 1.0, "target_epsilon": 1.0})
    ),
    *(
        Refusal(lambda make=make: make(1.0, 1.0, extend=True), "extend' must be false without 'target_epsilon', but is True")
        for make in (fl.ClientPrivacy, fl.ExamplePrivacy)
    ),
    Refusal(solved(-1), "needs the number of rounds, but 'trainer.max_epochs' is -1. Set it to"),
    Refusal(solved(more={"target_epsilon": 1e-6, "delta": 1e-12}), "No noise multiplier up to a ... Raise 'target_epsil"),
    Refusal(solved(noise="local", asynchronous=fl.Asynchronous(2, 2)), "'target_epsilon' of ClientPrivacy needs rounds that"),
    Refusal(solved(more={"target_quantile": 0.3, "count_noise": 0.1}), "'count_noise' is 0.1, but must be above"),
    Refusal(lambda: fl.ClientPrivacy(1.0, target_epsilon=2.0).multiplier, "has not been solved for 'target_epsilon' 2.0,"),
]


CENTRAL, LOCAL = fl.ClientPrivacy(0.05, 1.0), fl.ClientPrivacy(0.05, 1.0, "local")
HEAD = fl.PersonalPart(names="net.2.*")
ALL_PRIVACY: list[dict[str, Any]] = [{"transforms": [CENTRAL]}, {"transforms": [LOCAL]}, {"local": EXAMPLES}]


Inherits = made("Inherits", fl.FedAvg, weight=lambda self, update: 10.0 if update.client == 0 else 1.0)
Scales = made("Scales", fl.ClipUpdate, receive=lambda self, change, *rest: 10 * change)  # Increases the average at the server
Unclipped = made("Unclipped", fl.ClientPrivacy, apply=lambda self, message, sender: message)  # Forgets to clip
OwnRoute = made("OwnRoute", fl.ServerRoute)  # Could hand anything to anyone


@later
def on_scaled_table(settings: dict[str, Any]) -> None:
    """Fit on a table whose columns all clients' rows have scaled."""
    Path("rows.csv").write_text("a,b,y\n" + "".join(f"{k},{k * k},{k % 2}\n" for k in range(40)))
    private(data=fl.TableDataModule("rows.csv", "y", kind="classification", test_share=0.0), **settings)()


FUNCTIONAL = [
    # sums, cohorts, models, guesses, keys
    *(
        Refusal(lambda x=x: ExactSum(2).add(torch.tensor([1.0, x])), "cannot be summed exactly. Lower the", fl.ClientError)
        for x in (math.nan, 1e13)
    ),
    Refusal(lambda: Sums().add("n", math.nan), "cannot be summed exactly", fl.ClientError),
    Refusal(lambda: Sums().add("n", 2.0**42), "cannot be summed exactly", fl.ClientError),
    *(
        Refusal(lambda asked=asked: cohort_size(7, asked), "'federation.clients_per_round' must be ... but is")
        for asked in (0, 8, -1, 0.0, 1.5)
    ),
    Refusal(lambda: ModelState(torch.nn.ReLU()).vector(), "no trainable parameters, so there is nothing to federate"),
    Refusal(lambda: ModelState(torch.nn.LazyLinear(3)), "'weight' is not an initialised floating-point tensor"),
    Refusal(lambda: SecretKey(bytes(31)), "A key has 32 bytes, not 31", ValueError),
    Refusal(lambda: fl.FlowerPartitioner(fl.IIDPartitioner(3)), "'data.partitioner.partitioner' ... is a IIDPartitioner."),
    # what no clipping bounds
    Refusal(private(strategy=Inherits("uniform"), transforms=[CENTRAL]), "Inherits does not declare that it computes it ...,"),
    Refusal(private(strategy=Inherits(), transforms=[LOCAL]), "Inherits does not declare that it reads nothing else ..., set"),
    Refusal(private(strategy=Inherits(), local=EXAMPLES), "'federation.local.privacy' covers only ... = (\"examples\",)' in"),
    Refusal(private(transforms=[Scales(1.0), CENTRAL]), "Scales changes the average at the server ('receive') before"),
    Refusal(private(transforms=[Unclipped(0.05, 1.0)]), "Unclipped is a subclass of ClientPrivacy"),
    Refusal(private(transforms=[LOCAL], route=OwnRoute()), "ClientPrivacy covers only ... 'federation.route' is OwnRoute"),
    Refusal(private(transforms=[CENTRAL], route=fl.FedCyclic()), "on the route FedCyclic clients pass models to each other"),
    *(
        Refusal(private(**settings, personal=[replace(HEAD, start="mean")]), f"'mean', ... but {who} does")
        for settings, who in zip(ALL_PRIVACY, ("ClientPrivacy", "ClientPrivacy", "'federation.local.privacy'"), strict=True)
    ),
    *(Refusal(on_scaled_table(own), "'data.datamodule.standardize' is true, ... Set it to false") for own in ALL_PRIVACY),
]


REFUSALS = [*PRIVACY, *FUNCTIONAL]
