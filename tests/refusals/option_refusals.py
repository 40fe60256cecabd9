"""Options: asynchronous rounds, masks, attackers, personal parts, evaluation at the clients, clients held out, own ones."""

from collections.abc import Callable
from typing import Any

import torch
from algorithms import Following
from engine_runs import variant
from federations import Blobs, Consecutive, NoValidation, Plain, blobs, network, trainer
from lazy_stores import Opened
from lightning.pytorch.callbacks import EarlyStopping
from own_option import CountBatches, DropNumbers, PlansRounds, Sums
from poisoning import OneBroken, mislabel
from refusing import Refusal, fits, fitting, later, made, told
from torch.utils.data import TensorDataset

import fl_lightning as fl
from fl_lightning.core.option import ClientMetric
from fl_lightning.functional.keyed_noise import SecretKey

# ------ Asynchronous rounds and the simulated clock


UNWEIGHED, CENTRAL = fl.FedAvg("uniform"), fl.ClientPrivacy(1.0, 1.0)
PARTIAL = fl.LocalTraining(max_epochs=2, partial_work=fl.PartialWork(0.5))
UNIFORM = fl.Availability(clock=fl.Clock("uniform"))
BUFFER = "'federation.asynchronous.buffer'"


def asynchronous(**settings: Any) -> Callable[[], Any]:
    return fitting(**{"asynchronous": fl.Asynchronous(3, 2), **settings})


Sends = made("Sends", fl.FedAvg, broadcast=lambda self: {"more": torch.zeros(67)})
Everyone = made("Everyone", fl.FedAvg, needs_all_clients=True)


Thawing = variant(configure_callbacks=lambda self: [fl.TransferLearning(["net.0"], thaw_after=1)])


ASYNCHRONOUS = [
    Refusal(asynchronous(asynchronous=fl.Asynchronous(4)), "'federation.asynchronous.concurrency' must be a number of clients"),
    Refusal(asynchronous(asynchronous=fl.Asynchronous(2, 4)), f"{BUFFER} must be at most 3, because each of the 3 clients has"),
    Refusal(asynchronous(strategy=fl.FedDyn()), "FedDyn needs each client to train from the current global"),
    Refusal(asynchronous(route=fl.FedCyclic()), "On the route FedCyclic clients wait for each other, but"),
    Refusal(asynchronous(strategy=fl.FedAsync()), f"mixes every update ... {BUFFER} is 2. Set it to 1"),
    Refusal(asynchronous(clients_per_round=2), "'federation.clients_per_round' (2) is the size ..., but ... no round draws a"),
    Refusal(asynchronous(secure_aggregation=fl.SecureAggregation()), "'federation.secure_aggregation' lets the clients of a"),
    Refusal(asynchronous(strategy=UNWEIGHED, transforms=[CENTRAL]), "noise at the server needs cohorts ... but ... Set its"),
    Refusal(asynchronous(local=PARTIAL), "'federation.local.partial_work' needs ..., but ... no round draws"),
    Refusal(asynchronous(attackers=fl.Attackers(clients=[1], model=fl.ALIE())), "'federation.attackers.model' ALIE reads the"),
    Refusal(asynchronous(faults=fl.Faults("skip", min_updates=3)), "'federation.faults.min_updates' must be at most the 2"),
    fits("FedBuff combines updates of asynchronous ... Set 'federation.asynchronous", strategy=fl.FedBuff()),
    fits("On the route FedCyclic clients wait for each", route=fl.FedCyclic(), availability=fl.Availability(clock=fl.Clock())),
    Refusal(asynchronous(strategy=Sends()), "Sends sends tensors with each model ('broadcast'), which belong to the"),
    Refusal(asynchronous(strategy=Everyone()), "Everyone needs every client in every round, but with 'federation.asynchro"),
    Refusal(asynchronous(module=Following, strategy=fl.FedBuff()), "Training changes 'target.weight', ..., but"),
    Refusal(
        asynchronous(module=Thawing, rounds=3, asynchronous=fl.Asynchronous(3, 1), availability=UNIFORM),
        "changed since round 0, for example 'net.0...', but asynchronous clients still",
    ),
    Refusal(
        asynchronous(asynchronous=fl.Asynchronous(3, 3), availability=fl.Availability(drop_out=0.999), strategy=fl.FedBuff()),
        "Round 0: 0 updates can arrive, but a new model needs 1. Lower ..., or lower 'drop_out'",
        fl.ClientError,
    ),
]


# ------ Secure aggregation


def masked(strategy: Any = None, threshold: float = 0.67, **settings: Any) -> Callable[[], Any]:
    return fitting(strategy=strategy or fl.FedAvg(), secure_aggregation=fl.SecureAggregation(threshold), **settings)


class Counting(Plain):
    """Has a buffer of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))


Nothing = made("Nothing", fl.FedAvg, weight=lambda self, update: 0.0)  # Weighs everyone by 0


class Unannounced(fl.FedAvg):
    """Adds a sum that it does not announce."""

    def accumulate(self, update: Any, sums: Any) -> Any:
        sums.add("squares", 1.0)
        return super().accumulate(update, sums)


class Silent(fl.RunningStrategy):
    """Does not say what it adds up."""

    def accumulate(self, update: Any, sums: Any) -> float:
        sums.add("state", update.state)
        return 1.0

    def aggregate(self, sums: Any) -> Any:
        return sums.take("state")


SKIP = fl.Faults("skip")
MASKED = [
    Refusal(masked(fl.AdaFed("val_acc")), "AdaFed weighs every client's model by its score at the server, but with"),
    Refusal(masked(fl.LastClient()), "LastClient keeps one client's model, but with 'federation.secure_aggregation'"),
    Refusal(masked(fl.FedMedian()), "FedMedian needs every client's model to combine them"),
    Refusal(masked(route=fl.FedCyclic()), "On the route FedCyclic clients pass models to each other or keep them"),
    Refusal(masked(client_evaluation=fl.ClientEvaluation(1)), "'federation.client_evaluation' measures each client, but with"),
    Refusal(masked(clients_per_round=1), "'federation.clients_per_round' must be 2 clients or more with"),
    Refusal(masked(module=Counting), "The module has a buffer 'seen' of whole numbers, which cannot be added"),
    Refusal(masked(Silent()), "Silent does not say which sums it adds up, so clients cannot mask them. ... from 'sum_sizes'"),
    Refusal(masked(Unannounced()), "adds 1 numbers to a sum 'squares', which its 'sum_sizes' does not announce"),
    Refusal(masked(Nothing()), "Nothing gave all clients of the round the weight 0, and masks hide their", fl.ClientError),
    Refusal(masked(threshold=1.0, data=OneBroken(), faults=SKIP), "2 of 3 clients delivered, but ... takes 3", fl.ClientError),
]


# ------ Options from outside the package


Knows = made("Knows", fl.Option, key=lambda self, seed: SecretKey.from_seed(seed))


class Unknown(Sums):
    def measures(self) -> Any:
        yield ClientMetric("own loss", "val_los", "training")


STACKED = fl.LocalTraining(engine="stacked")
EXACT = "DropNumbers may read clients' changes ... but ClientPrivacy protects them"
OWN_OPTION = [
    fits("DropNumbers acts on the updates ... but on the route ... pass models", route=fl.FedCyclic(), options=[DropNumbers()]),
    fits("'federation.options.metric' is 'val_los',", options=[Unknown()], flags={"num_sanity_val_steps": 1}),
    fits("'federation.options.0' and 'federation.options.1' each add up", options=[Sums(), Sums()]),
    fits("'federation.secure_aggregation' and", options=[Sums()], secure_aggregation=fl.SecureAggregation()),
    fits("'federation.options.0' adds up ... the strategy needs each", options=[Sums()], strategy=fl.FedMedian()),
    fits("'federation.asynchronous' and 'federation.options.0'", options=[PlansRounds()], asynchronous=fl.Asynchronous(2, 1)),
    Refusal(fitting(options=[CountBatches()], local=STACKED), "do not support CountBatches, a callback of", fl.FederationError),
    fits("'federation.options' sets the key ... could be sub", strategy=UNWEIGHED, options=[Knows()], transforms=[CENTRAL]),
    fits(EXACT, strategy=UNWEIGHED, options=[DropNumbers()], transforms=[CENTRAL]),
]


# ------ Options of a federation


HEAD, ALL = fl.PersonalPart(names="net.3.*"), fl.PersonalPart(names="*")
ALONE = fl.ClientEvaluation(1, "val_acc", compare_alone=True)
ADAPTING = fl.ClassificationTask(network(), 3, fl.F1WeightedCrossEntropy(3))
EVALUATED = fl.ClientEvaluation(1, "val_acc")


def attacked(data: Any = None, route: Any = None, **settings: Any) -> Callable[[], Any]:
    return fitting(data=data, route=route, attackers=fl.Attackers(**{"clients": [1], **settings}))


BYTES = torch.zeros(1, 8, 8, dtype=torch.uint8)
MEAN = [fl.PersonalPart(names=HEAD.names, start="mean")]


@later
def personal(*callbacks: Any, parts: Any = (HEAD,), **settings: Any) -> None:
    """Fit a module with BatchNorm and personal parts; its clients have test parts if they are evaluated."""
    data = fl.FederatedDataModule(Blobs(), Consecutive(), client_test=0.3 if "client_evaluation" in settings else 0.0)
    module = settings.pop("module", None) or Plain(batchnorm=True)
    federation = fl.FederatedOrchestrator(personal=list(parts), **settings)
    trainer(1, federation, *callbacks, enable_checkpointing=True).fit(module, data)


def evaluated(evaluation: fl.ClientEvaluation) -> Callable[[], Any]:
    run = trainer(1, fl.FederatedOrchestrator(client_evaluation=evaluation), num_sanity_val_steps=1)
    return lambda: run.fit(Plain(), fl.FederatedDataModule(Blobs(), Consecutive(), client_test=0.3))


@later
def lied_to(attack: fl.LabelAttack) -> None:
    """Read the labels of a client, of 7 examples in 3 classes, that an attack has changed."""
    data = fl.FederatedDataModule(Blobs(shuffle=False), Consecutive())
    data.setup("fit")
    mislabel(data, {0: attack}, 0)
    data.label_counts()
    data.client(0, 0)


def held_out(clients: Any, **settings: Any) -> fl.FederatedDataModule:
    data = {name: TensorDataset(*blobs(8, seed)) for seed, name in enumerate("abcde")}
    return fl.FederatedDataModule.from_clients(data, batch_size=5, held_out_clients=clients, **settings)


def one_held_out(data: Any, **settings: Any) -> Callable[[], Any]:
    return lambda: fl.FederatedDataModule(data, Consecutive(), held_out_clients=1, **settings)


def set_up(make: Callable[[], fl.FederatedDataModule]) -> Callable[[], Any]:
    return lambda: make().setup("fit")


def opened() -> fl.FederatedDataModule:
    read = lambda client: TensorDataset(*blobs(8, client))  # noqa: E731
    return fl.FederatedDataModule(Opened(read, [8] * 4), held_out_clients=1)


WrongLength = made("WrongLength", fl.ModelAttack, forge=lambda self, change, crowd, generator: change[1:])


class Returns(fl.LabelAttack):
    def __init__(self, labels: Any) -> None:
        self.labels = labels

    def change(self, labels: Any, num_classes: int, generator: Any) -> Any:
        return self.labels(labels)


OPTION = [
    # attackers
    Refusal(lambda: fl.Attackers(clients=[1]), "together with at least one of the others (how they attack)"),
    Refusal(attacked(clients=[9], model=fl.SignFlip()), "'federation.attackers.clients' must be clients from 0 to 2"),
    Refusal(lambda: fl.Attackers(clients=1.5, model=fl.SignFlip()), "attackers.clients' must be ids, or a share from 0 to"),
    Refusal(lied_to(fl.PermutedLabels(3)), "'federation.attackers.labels.shift' must be not a multiple of the 3 classes"),
    Refusal(lambda: fl.RelabelClass(1, 1), "must be a class other than 'source'"),
    Refusal(lambda: fl.RelabelClass(-1, 1), "must be a class of 0 or above"),
    Refusal(lied_to(fl.RelabelClass(3, 0)), "'federation.attackers.labels.source' must be one of the classes 0 to 2"),
    Refusal(attacked(route=fl.Mediators(2), model=fl.SignFlip()), "SignFlip changes the updates that clients send"),
    Refusal(attacked(model=WrongLength()), "WrongLength.forge returned a tensor of shape (66,) in float64, but ... (67,)"),
    Refusal(lied_to(Returns(lambda labels: None)), "Returns.change returned None, but a tensor of shape (7,) is needed"),
    Refusal(lied_to(Returns(lambda labels: labels[:1])), "Returns.change returned a tensor of shape (1,) in int64, but a"),
    # backdoors
    *(
        told(lambda x=inputs: fl.Backdoor(size=4).stamp(x), f"dataset returns {came}. Let its transform ... lower 'size'.")
        for inputs, came in ((torch.zeros(3), "shape (3,)"), (torch.zeros(1, 3, 9), "shape (1, 3, 9)"), ([1.0], "type list"))
    ),
    *(told(lambda v=v: fl.Backdoor(value=v).stamp(BYTES), "backdoor.value' is ... from 0 to 255") for v in (0.5, 300.0, -1.0)),
    Refusal(attacked(backdoor=fl.Backdoor(3)), "'federation.attackers.backdoor.target' must be one of the classes 0 to 2"),
    Refusal(attacked(NoValidation(), backdoor=fl.Backdoor()), "'federation.attackers.backdoor' needs its success rate on the"),
    # personal parts
    *(
        Refusal(lambda given=given: fl.PersonalPart(**given), words)
        for given, words in (
            ({}, "it needs exactly one of them"),
            ({"modules": "torch.nn.Linear", "names": "a"}, "it needs exactly one of them"),
            ({"modules": "torch.nn.Linea"}, "names the class 'torch.nn.Linea', which cannot be imported"),
            ({"modules": "Linear"}, "names the class 'Linear', which cannot be imported"),
            ({"modules": "torch.nn.functional.relu"}, "which is not a torch.nn.Module"),
        )
    ),
    Refusal(personal(parts=MEAN, asynchronous=fl.Asynchronous(2, 1)), "'start' in 'federation.personal' is 'mean', which"),
    Refusal(personal(parts=MEAN, client_evaluation=ALONE), "compare_alone' trains clients from the first model, but 'start'"),
    Refusal(personal(parts=[fl.PersonalPart(names="net.4.*")]), "'net.4.*', which match no parameter ... Did you mean net"),
    Refusal(personal(parts=[fl.PersonalPart(modules="torch.nn.BatchNorm2d")]), "contains no such layer ... Did you mean"),
    Refusal(personal(strategy=fl.AdaFed("val_acc")), "AdaFed scores clients' models on the server's set"),
    Refusal(personal(route=fl.LocalOnly("val_acc")), "LocalOnly scores models on the server's set, but with"),
    Refusal(personal(attackers=fl.Attackers(clients=[1], backdoor=fl.Backdoor(1))), "'federation.attackers.backdoor' is"),
    Refusal(personal(parts=[ALL], strategy=fl.Scaffold()), "matches every parameter, so Scaffold has nothing to correct"),
    Refusal(personal(parts=[ALL], module=ADAPTING), "F1WeightedCrossEntropy adapts to the server's validation"),
    *(
        Refusal(personal(callback, **settings), "the server's model is incomplete, so the server does not validate")
        for callback, settings in (
            (fl.BestCheckpoint("val_acc"), {}),
            (EarlyStopping("val_loss"), {"client_evaluation": EVALUATED}),
        )
    ),
    Refusal(personal(EarlyStopping("val_ac"), client_evaluation=EVALUATED), "EarlyStopping monitors ... Did you mean val_acc?"),
    # evaluation at the clients
    fits("each client's own test part, but ... Set 'data.client_test'", client_evaluation=fl.ClientEvaluation(1)),
    Refusal(evaluated(fl.ClientEvaluation(1, "val_f1")), "'federation.client_evaluation.metric' is 'val_f1', which Plain does"),
    # clients held out
    Refusal(lambda: held_out(1.0), "'data.held_out_clients' must be a share of at least 0 and below 1"),
    Refusal(lambda: held_out(20.0), "Write 20 for a number, or 0.2 for 20 %"),
    Refusal(lambda: held_out(-1), "a number of clients, or a list of their names, but is -1"),
    Refusal(lambda: held_out(["a", "a"]), "must be names that differ, but is ['a', 'a']"),
    Refusal(set_up(lambda: held_out(["f"])), "'data.held_out_clients' has 'f', but the clients are: a, ... Use their names."),
    Refusal(set_up(lambda: held_out(5)), "must be fewer than the 5 clients, so that some train, but is 5"),
    Refusal(one_held_out(Blobs(), public_share=0.1), "'data.public_share' must be 0 if ... or with held-out clients,"),
    Refusal(one_held_out(fl.TableDataModule("t.csv")), "'data.datamodule.standardize' must be false with held-out clients"),
    Refusal(set_up(opened), "'data.held_out_clients' must be off, but is 1. The clients' examples are read when the clients"),
]


REFUSALS = [*ASYNCHRONOUS, *MASKED, *OWN_OPTION, *OPTION]
