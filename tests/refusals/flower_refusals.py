"""What the server of a real federation refuses: settings, and what its sites tell."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from masked_sites import SECURE, masked
from refusing import Refusal, later
from sites_over_bytes import (
    ABSENT,
    CHOOSE,
    SERVERS,
    TELLS,
    BytesSites,
    at_sites,
    configuration,
    disturb,
    give_parts,
    prepare,
    refused,
    restart,
    simulate,
)

from fl_lightning import ConfigurationError
from fl_lightning.flower.site.policy import Policy

SKIP = {"faults": {"policy": "skip"}}
ENOUGH = ("--federation.pool.min_sites", "2")
EVERY = {"every_n_rounds": 1, "metric": "val_loss"}
BIG = 10**400
NOISY = {"privacy": {"noise_multiplier": 2.0, "max_grad_norm": 1.0}}


def telling(**told: Any) -> Callable[[], Any]:
    """Return a fit with a site that tells something else of its data."""

    def change(config: Any) -> None:
        data = SERVERS["west"]._data
        found = replace(data.info("west", Policy()), **told)
        data.info = lambda *_: found  # type: ignore[method-assign]

    return at_sites(change=change, policy={"tells": [*TELLS, "label_counts"]})


@later
def simulating(*more: str) -> None:
    """Return a simulation."""
    prepare(start=False)
    raise ConfigurationError(refused(configuration(), "simulated", *more, fit=simulate))


def holding_out(names: Any, **sites: Any) -> Callable[[], Any]:
    """Return a fit that holds out clients; each site has a test part, unless ``sites`` says otherwise."""

    def change(config: Any) -> None:
        restart(client_test=0.25)
        restart("south", **sites)
        config["data"]["held_out_clients"] = names

    return at_sites(change=change, client_evaluation={"every_n_rounds": 1, "metric": "val_accuracy"})


@later
def under_masks(**federation: Any) -> None:
    """Return a fit under masks with sites that have a validation part."""
    masked()
    restart(client_validation=0.3)
    raise ConfigurationError(refused(configuration(**federation, **SECURE)))


def unasked(*more: str, **federation: Any) -> Callable[[], Any]:
    """Return a fit that the server refuses before it asks a site."""
    return at_sites(*more, start=False, **federation)


def asynchronously(*more: str, **federation: Any) -> Callable[[], Any]:
    settings = {"strategy": "FedAvg", "asynchronous": {"concurrency": 3, "buffer": 1}, **federation}
    return at_sites(*more, change=lambda config: give_parts(), **settings)


def without_south(config: Any) -> None:
    ABSENT.add("south")


def streaming(config: Any) -> None:
    restart("south", datamodule={"class_path": "sites_over_bytes.Streaming", "init_args": {"path": "south/own.csv"}})


def south_first(config: Any) -> None:
    """Let the site that is silent be the next one that should answer."""
    disturb("south")
    CHOOSE["choose"] = lambda waiting: 1 if 1 in waiting else waiting[0]


REFUSALS = [
    # what cannot work over a network
    Refusal(unasked(attackers={"wrong_labels": {0: 0.5}}), "federation.attackers"),
    Refusal(unasked(availability={"drop_out": 0.1}, **SKIP), "federation.availability"),
    Refusal(unasked(availability={"clock": {"ticks": 10}}), "federation.availability.clock"),
    Refusal(unasked(options=[{"class_path": "own_option.DropNumbers"}]), "federation.options"),
    Refusal(unasked(secure_aggregation={"threshold": 2}), "federation.secure_aggregation"),
    Refusal(unasked(local={"engine": "stacked"}), "federation.local.engine: stacked"),
    Refusal(unasked("--data.public_share", "0.1"), "data.public_share"),
    Refusal(unasked("--data.feature_noise", "0.1"), "data.feature_noise"),
    Refusal(at_sites(route={"class_path": "Mediators", "init_args": {"clients_per_mediator": 2}}), "label counts"),
    Refusal(at_sites(strategy="FedLoss"), "needs a validation part at each site"),
    Refusal(at_sites(personal=[{"names": "layers.4.*", "start": "mean"}]), "but the server of a real federation never has"),
    Refusal(at_sites("--model.num_classes", "2"), "north (client 0): ... Raise the model's 'num_classes'"),
    Refusal(simulating("--data.partitioner", "null"), "'data.partitioner' must be set, unless clients have data of their own"),
    Refusal(simulating("--data.datamodule.path", "null"), "'data.datamodule.path' is null, so there are no rows to train on."),
    Refusal(at_sites("--data.datamodule.standardize", "true"), "'data.datamodule.standardize' is true,"),
    Refusal(at_sites(change=streaming, local=NOISY, policy={"tells": ["examples"]}), "but site south trains on a stream"),
    # sites that are lost, away, or others than they should be
    Refusal(at_sites(change=lambda config: disturb("south")), "Site south (client 1): no answer within its deadline. When the"),
    Refusal(unasked(*ENOUGH), "'federation.pool.min_sites' is 2, but 'federation.faults.policy' is 'fatal'"),
    Refusal(unasked("--federation.pool.min_sites", "0", **SKIP), "federation.pool.min_sites"),
    Refusal(at_sites(*ENOUGH, change=without_south, client_evaluation=EVERY, **SKIP), "client_evaluation' needs all sites"),
    Refusal(at_sites(change=lambda config: SERVERS.update(south=SERVERS["west"])), "Site south calls itself 'west'. Start it"),
    # what sites tell
    Refusal(telling(num_examples=0), "Site west has no training examples. Check the data.yaml there."),
    Refusal(telling(num_examples=BIG), "Site west ... has the wrong type"),
    Refusal(telling(num_examples=2**37), "Site west ... Check the data.yaml there"),
    Refusal(telling(label_counts=(30, -6)), "Site west ... Check the data.yaml there"),
    Refusal(telling(num_validation=-1), "Site west ... Check the data.yaml there"),
    Refusal(telling(streams="yes"), "Site west ... has the wrong type"),
    Refusal(lambda: BytesSites(max_examples={"a": 0}), "'federation.pool.max_examples' must be"),
    Refusal(lambda: BytesSites(max_share=1.5), "'federation.pool.max_share' must be"),
    # held-out sites
    Refusal(holding_out(0.3), "'data.held_out_clients' must be a list of sites by name"),
    Refusal(holding_out(["east"]), "has 'east', but"),
    Refusal(holding_out(["south"], client_test=0.0), "needs a test part at each site. Without one: south."),
    # masks: with q = 20, losses of 1.14, 1.11 and 1.04 gave one site of three 59 % of the weight
    *(
        Refusal(under_masks(strategy=strategy), "of a number of theirs, so that one site could be nearly all of the sum")
        for strategy in (
            {"class_path": "QFedAvg", "init_args": {"q": 20.0}},
            {"class_path": "FedLoss", "init_args": {"examples": 5.0}},
            {"class_path": "AdaFed", "init_args": {"metric": "val_accuracy", "power": 30.0, "scored_by": "clients"}},
        )
    ),
    Refusal(under_masks(strategy="AFL"), "AFL does not say which sums it adds up"),
    Refusal(under_masks(route="FedCyclic"), "On the route FedCyclic clients pass models to each other"),
    # asynchronous rounds
    Refusal(asynchronously(strategy="Scaffold"), "Scaffold needs each client to train from the current global model"),
    Refusal(asynchronously(secure_aggregation={"threshold": 1.0}), "'federation.secure_aggregation' lets the clients of a"),
    Refusal(asynchronously(availability={"clock": {"ticks": 10}}), "This does not work there: federation.availability.clock."),
    Refusal(asynchronously(client_evaluation=EVERY), "'federation.client_evaluation' evaluates models at the clients between"),
    Refusal(asynchronously("--federation.asynchronous.replay", "a.jsonl"), "not work there: federation.asynchronous.replay."),
    Refusal(
        at_sites(change=south_first, strategy="FedAsync", asynchronous={"concurrency": 3, "buffer": 1}),
        "Site south (client 1): no answer within its deadline. When the site can answer again",
    ),
]
