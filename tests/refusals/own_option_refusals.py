"""Options from outside the package: what they do not go with."""

from __future__ import annotations

from typing import Any

from own_option import CountBatches, DropNumbers, PlansRounds, Sums
from refusing import Refusal, fitting

import fl_lightning as fl
from fl_lightning.core.option import ClientMetric
from fl_lightning.functional.keyed_noise import SecretKey


class Knows(fl.Option):
    def key(self, seed: int) -> Any:
        return SecretKey.from_seed(seed)


class Unknown(Sums):
    def measures(self) -> Any:
        yield ClientMetric("own loss", "val_los", "training")


def private(noise: str) -> fl.ClientPrivacy:
    return fl.ClientPrivacy(0.5, 1.0, noise, noise_seed=7)


EXACT = "DropNumbers may read clients' changes ... but ClientPrivacy protects them"
NO_UPDATE = "DropNumbers acts on the updates ... but on the route ... pass models to each other"
REFUSALS = [
    *(
        Refusal(fitting(route=route, options=[DropNumbers()]), NO_UPDATE)
        for route in (fl.FedCyclic(), fl.LocalOnly("val_acc"), fl.WarmStart(1))
    ),
    Refusal(fitting(options=[Unknown()], flags={"num_sanity_val_steps": 1}), "'federation.options.metric' is 'val_los',"),
    Refusal(fitting(options=[Sums(), Sums()]), "'federation.options.0' and 'federation.options.1' each add up"),
    Refusal(fitting(options=[Sums()], secure_aggregation=fl.SecureAggregation()), "'federation.secure_aggregation' and"),
    Refusal(fitting(options=[Sums()], strategy=fl.FedMedian()), "'federation.options.0' adds up ... the strategy needs each"),
    Refusal(
        fitting(options=[PlansRounds()], asynchronous=fl.Asynchronous(2, 1)),
        "'federation.asynchronous' and 'federation.options.0' each plan rounds in a way of their own",
    ),
    Refusal(
        fitting(options=[CountBatches()], local=fl.LocalTraining(engine="stacked")),
        "Stacked clients do not support CountBatches, a callback of an option",
        fl.FederationError,
    ),
    Refusal(
        fitting(strategy=fl.FedAvg("uniform"), options=[Knows()], transforms=[fl.ClientPrivacy(0.5, 1.0)]),
        "'federation.options' sets the key ... noise of ClientPrivacy could be sub",
    ),
    *(
        Refusal(fitting(strategy=fl.FedAvg("uniform"), options=[DropNumbers()], transforms=[private(noise)]), EXACT)
        for noise in ("central", "local")
    ),
]
