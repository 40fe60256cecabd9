"""Strategies, routes, partial work and K-means: wrong settings, and what they do not go with."""

from typing import Any
from unittest.mock import patch

import lightning as L
import torch
from against_hand import combine
from engine_runs import optimized, variant
from federations import Blobs, NoValidation, Plain, blobs, changed, trainer
from refusing import Refusal, fits, fitting
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fl_lightning as fl
from fl_lightning.strategies.filtering import FilteringStrategy
from fl_lightning.types import ClientUpdate, RoundStart, Snapshot

# ------ Strategies and rules


ADADELTA, ADAM = optimized(torch.optim.Adadelta), optimized(torch.optim.Adam)
WHOLE, MASKS = fl.LocalTraining(full_batch=True), fl.SecureAggregation()
ZEROS, NOT_NUMBERS = torch.zeros(3), torch.full((3,), torch.nan)


OPPOSITE, DIVERGED = [torch.ones(3), -torch.ones(3)], [ZEROS, NOT_NUMBERS, NOT_NUMBERS]


def with_loss(value: float) -> Any:
    """A module whose validation loss is this."""
    return variant(validation_step=lambda self, batch, batch_idx: self.log("val_loss", torch.tensor(value), batch_size=1))


def own(base: type, **methods: Any) -> Any:
    """A strategy of a user's own, with these methods in place of its base's."""
    return type("Own", (base,), methods)()


def returning(base: type, name: str, change: Any) -> Any:
    """A strategy of a user's own whose method returns what ``change`` makes of its base's result."""
    usual = getattr(base, name)
    return own(base, **{name: lambda self, *args: change(usual(self, *args))})


def with_state(change: Any) -> Any:
    """A rule of a user's own that returns another state."""
    return returning(fl.FedMedian, "combine", lambda both: (change(both[0]), both[1]))


def filtering(answer: Any) -> Any:
    """A filter of a user's own, whose weights are what it makes of the numbers of examples."""
    return own(FilteringStrategy, weights=lambda self, products, examples: answer(examples))


def weighing(score: float) -> None:
    """Let AdaFed weigh a client of this score, the lower the better."""
    strategy = fl.AdaFed("val_loss", mode="min")
    strategy.epsilon = 1e-12
    strategy.accumulate(fl.ClientUpdate(4, 2, 10, 1, score=score, model=Snapshot(ZEROS, torch.zeros(0))), fl.Sums())


SAVES = {"state_dict": lambda self: {"momentum": 1.0}}
LOADS = {"load_state_dict": lambda self, state: None}

OWN = [
    (own(fl.Strategy), "Own does not define how to aggregate updates ... WeightedAverage"),
    (returning(fl.FedAvg, "aggregate", lambda state: state[:-1]), "Own.aggregate returned a tensor of shape (66,) in float64,"),
    (with_state(lambda state: state.mean()), "Own.combine returned a tensor of shape () in float64"),
    (with_state(lambda state: state.float()), "Own.combine returned a tensor of shape (67,) in float32"),
    (returning(fl.FedAvg, "weight", lambda _: torch.ones(2)), "Own.weight returns a tensor of shape (2,) in float32"),
    (returning(fl.FedAvg, "accumulate", lambda _: None), "Own.accumulate returned None, ... Return the update's weight"),
    (returning(fl.FedMedian, "combine", lambda both: both[0]), "Own.combine returned a tensor ... Return both"),
    (filtering(lambda examples: examples[1:]), "Own.weights returned a tensor of shape (2,) ... (3,) is needed"),
    (own(fl.FedAvg, broadcast=lambda self: {"control": 1.0}), "'control' of Own.broadcast is an object of the class float,"),
]
"""Strategies of a user's own and what is wrong with them."""
STRATEGY = [
    # what does not go together
    fits("LocalOnly aggregates nothing", strategy=fl.FedAvgM(), route=fl.LocalOnly("val_acc")),
    Refusal(lambda: fl.WarmStart(route=fl.LocalOnly()), "must be a route that aggregates, but is 'LocalOnly'"),
    fits("FedSGD needs one gradient over all examples of each client ... full_batch", strategy=fl.FedSGD()),
    fits("FedSGD takes one step of SGD, but the clients train with Adam", module=ADAM, strategy=fl.FedSGD(), local=WHOLE),
    fits("AFL needs every client in every round, but ... a cohort of 2", strategy=fl.AFL(), clients_per_round=2),
    fits("AFL needs every client ... 'federation.faults.policy' skip", strategy=fl.AFL(), faults=fl.Faults("skip")),
    fits("FedAdagrad has its own server optimizer", strategy=fl.FedAdagrad(), server_optimizer=torch.optim.Adam),
    # rounds that a rule cannot bear
    fits("Krum against 2 attackers needs 7 models, but a round has 3", strategy=fl.Krum(2)),
    Refusal(lambda: combine(fl.Krum(0, selected=5), [ZEROS] * 4), "Krum against 0 attackers needs 5 models"),
    Refusal(lambda: combine(fl.TrimmedMean(2), [ZEROS] * 4), "that removes 2 models on each side leaves none of a round's 4"),
    Refusal(lambda: combine(fl.CosineFilter(), OPPOSITE), "None of 2 updates has a mean cosine with the ... 0", fl.ClientError),
    Refusal(lambda: combine(fl.FedMedian(), DIVERGED), "median of 3 models is not finite: at least half of", fl.ClientError),
    Refusal(lambda: fl.FedLoss().aggregate(fl.Sums()), "FedLoss rejected every client of the round", fl.ClientError),
    Refusal(fitting(module=lambda: Plain(lr=0.0), strategy=fl.FedNova()), "add up to 0.0: its proximal term", fl.ClientError),
    # weights that cannot be summed
    Refusal(lambda: weighing(1e-20), "AdaFed gave client 4 the weight 1e+12 in round 2, but weights above", fl.ClientError),
    Refusal(fitting(module=with_loss(0.1), strategy=fl.QFedAvg(400.0)), "its loss 0.1... to the power of q =", fl.ClientError),
    Refusal(
        fitting(module=with_loss(0.05), strategy=fl.QFedAvg(15.0), secure_aggregation=MASKS),
        "The weight 3.05e-20 in the sum 'state' is too far from what its grid expects ... Multiply the weights of all clients",
        fl.ClientError,
    ),
    Refusal(fitting(module=with_loss(torch.nan), strategy=fl.QFedAvg()), "q-FedAvg cannot weigh client ... in", fl.ClientError),
    # strategies of a user's own
    *(fits(words, strategy=strategy) for strategy, words in OWN),
    Refusal(fitting(strategy=own(fl.FedAvg, __init__=lambda self: None)), "no attribute ... call 'super().", AttributeError),
    # half of a saved state
    fits("Own defines 'load_state_dict' but not 'state_dict', so a resumed run", strategy=own(fl.FedMedian, **LOADS)),
    fits("Own defines 'state_dict' but not 'load_state_dict', so a resumed run", route=own(fl.ServerRoute, **SAVES)),
]


# ------ Routes, attackers and rebalancing


def linear(loss: Any = None) -> fl.RegressionTask:
    return fl.RegressionTask(nn.Linear(4, 1), loss or fl.HalfSquaredError())


def one_class() -> Blobs:
    data = Blobs()
    data.train[1].zero_()
    return data


class Named(Dataset[Any]):
    """Its examples are dictionaries."""

    targets = blobs(40, 1)[1]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"x": index}


NAMED = variant(Blobs, train_dataloader=lambda self: DataLoader(Named(), batch_size=5))

ROUTE = [
    # Mocha
    Refusal(lambda: fl.Mocha(strength=0.0, l2=0.0), "'federation.route.l2' must be above 0 if 'strength' is 0"),
    fits("Mocha is defined only for linear models", module=lambda: fl.ClassificationTask(fl.LeNet(1, 28)), route=fl.Mocha()),
    fits("Mocha needs a convex loss, but RobustLoss", module=lambda: linear(fl.RobustLoss(0.0)), route=fl.Mocha()),
    fits("Set 'federation.local.proximal_mu' to 0", module=linear, route=fl.Mocha(), local=fl.LocalTraining(proximal_mu=0.1)),
    # wrong labels
    Refusal(fitting(data=one_class(), attackers=fl.Attackers({0: 1.0})), "a single class, so no label can be", fl.DataError),
    Refusal(fitting(data=NAMED(), attackers=fl.Attackers({1: 1.0})), "need the form (input, label, ... but", fl.DataError),
]


# ------ Data, routes and clients


def data(words: str, partitioner: Any = None, error: Any = fl.DataError, **settings: Any) -> Refusal:
    """Return a row on a federation's data of 40 examples with three classes."""
    divided = partitioner or fl.IIDPartitioner(3)
    run = trainer(1, fl.FederatedOrchestrator())
    return Refusal(lambda: run.fit(Plain(), fl.FederatedDataModule(Blobs(), divided, **settings)), words, error)


def partly(words: str, share: float, what: str = "keep", epochs: int = 2) -> Refusal:
    """Return a row on clients that do a part of their work."""
    local = {"max_epochs": epochs, "partial_work": fl.PartialWork(share, what)}
    return Refusal(lambda: fitting(local=fl.LocalTraining(**local))(), words)


NO_VAL = {"flags": {"limit_val_batches": 0}}
UNLABELLED = changed("train", DataLoader(TensorDataset(torch.zeros(40, 4), torch.rand(40, 2)), batch_size=5))

SETTING = [
    Refusal(lambda: fl.ClassificationTask(Plain().net, 5, fl.F1WeightedCrossEntropy(10)), "'model.loss.num_classes' must be"),
    # data
    data("41 clients cannot share 40 examples", fl.IIDPartitioner(41)),
    data("10 clients with at least 5 examples each need 50, but there are only", fl.DirichletPartitioner(10, min_examples=5)),
    data("Lower 'data.partitioner.min_examples' or 'num_clients', or raise", fl.DirichletPartitioner(8, 1e-3, min_examples=4)),
    data("cannot be cut into ... shards", fl.ShardPartitioner(40)),
    # what strategies need
    fits("evaluates each client's model on the client's own validation part, but clients", strategy=fl.FedLoss()),
    fits("needs val_acc on the server's validation set, but the", strategy=fl.ShapleyValues("val_acc"), **NO_VAL),
    fits("needs val_loss on the server's validation set, but the server has none", strategy=fl.Focus(), **NO_VAL),
    fits("FedNova does not support the clients' optimizer, Adadelta. It", strategy=fl.FedNova(), module=ADADELTA),
    fits("SCAFFOLD is defined for plain SGD with one learning rate, but", strategy=fl.Scaffold(), module=ADADELTA),
    fits("but the clients train with SGD with", strategy=fl.Scaffold(), module=lambda: Plain(momentum=0.9)),
    fits("one gradient per client, but client 1", strategy=fl.FedSGD(), local=fl.LocalTraining(full_batch=True, max_epochs=2)),
    # routes
    *(
        fits(f"{type(route).__name__} needs every client in every round, but thi", route=route, clients_per_round=2)
        for route in (fl.FedCyclic(), fl.FedStar(2, "val_acc"), fl.RingFed(), fl.LocalOnly("val_acc"), fl.WarmStart(1))
    ),
    fits("The metric for models is 'val_acuracy', ... Did you mean val_acc", route=fl.FedStar(2, "val_acuracy")),
    fits("FedCyclic sends a single model to the server, so ", route=fl.FedCyclic(), strategy=fl.FedMedian()),
    fits("FedNova needs each client to train by itself from the global", route=fl.RingFed(), strategy=fl.FedNova()),
    Refusal(fitting(route=fl.Mediators(2), data=UNLABELLED), "Mediators groups clients by their label counts,", fl.DataError),
    # clients
    partly("'federation.local.max_epochs' must be 2 or above, since 'partial_work'", 0.5, epochs=1),
    partly("must be a share that leaves at least one of the round's 3 clients, but is 1.0", 1.0, "drop"),
    Refusal(lambda: fl.Attackers({1: 1.5}), "'federation.attackers.wrong_labels.1' must be a share from 0 to 1"),
    fits("'federation.attackers.wrong_labels' must be clients from 0 to 2", attackers=fl.Attackers({3: 1.0})),
]


# ------ Federated K-means


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
AGGREGATES = "Remove 'federation.server_optimizer', and set 'federation.route' to ServerRoute"
NO_CENTROIDS = "needs a module with K centroids and their K counts, ... Set 'model' to KMeansTask"

KMEANS = [
    Refusal(of(proximal_mu=0.1), "'federation.local.proximal_mu' must be 0.0 with KMeansTask, which has no"),
    Refusal(of(lr_decay=0.5), "'federation.local.lr_decay' must be 1.0 with KMeansTask"),
    Refusal(of(gradient_clip_val=1.0), "'federation.local.gradient_clip_val' must be null with KMeansTask"),
    Refusal(of(accumulate_grad_batches=2), "'federation.local.accumulate_grad_batches' must be 1 with"),
    Refusal(of(privacy=fl.ExamplePrivacy(1.0, 1.0)), "'federation.local.privacy' covers only the clients' models, but"),
    Refusal(of(engine="fabric"), "KMeansTask optimizes manually ... 'federation.local.engine' to 'trainer'"),
    Refusal(of(precision="bf16-true"), "counts examples, but torch.bfloat16 cannot ... Set 'trainer.precis"),
    # what it does not go with
    Refusal(of(strategy=fl.FedAvg()), "FedAvg does not know how many examples ... Set 'federation.strategy' to"),
    Refusal(of(Plain()), NO_CENTROIDS),
    Refusal(of(server_optimizer=lambda p: torch.optim.SGD(p, lr=1e-3)), AGGREGATES),
    Refusal(counting(0.5), "client 0 sent averaged buffers that are not counts"),
    Refusal(on_two_ranks, "runs in one process, but this run has 2. Set 'trainer.devices' to 1"),
    # data that gives no centroids
    Refusal(of(fl.KMeansTask(41, 4)), "'model.num_clusters' must be at most the clients' 40 training examples, but"),
    Refusal(of(fl.KMeansTask(2, 5)), TOO_WIDE),
    Refusal(alone(fl.KMeansTask(2, 5, "random"), Blobs()), TOO_WIDE),
    Refusal(of(data=NoValidation()), NO_SET),
    Refusal(alone(fl.KMeansTask(2, 4), NoValidation()), NO_SET.partition(". Add")[0]),
    Refusal(of(data=held_out([1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0])), "found 2 different examples among", fl.DataError),
    Refusal(of(data=held_out([1.0, torch.nan, 3.0, 4.0])), "The validation set has numbers that are not finite", fl.DataError),
    Refusal(alone(fl.KMeansTask(3, 4), spoilt()), "training examples have numbers that are not finite", fl.ClientError),
]


REFUSALS = [*STRATEGY, *ROUTE, *SETTING, *KMEANS]
