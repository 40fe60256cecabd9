"""Refuse what reads or sends more of clients than a noise covers; sites check it themselves, too."""

from __future__ import annotations

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.strategies.base import Strategy

ELSEWHERE = "Use a strategy that reads only the clients' models, such as FedAvg or AdaFed."
DECLARE = "if that is true of a class of your own, set 'private_with = (\"{}\",)' in its body; it is not inherited"


def declares(strategy: Strategy, noise: str) -> bool:
    """Return whether a strategy's own class, not one that it inherits from, declares itself private with such noise."""
    return noise in vars(type(strategy)).get("private_with", ())


def check_declared(strategy: Strategy, noise: str, what: str) -> None:
    """Refuse a strategy that may read more of a client than its noisy model.

    Args:
        strategy: the strategy.
        noise: the noise that it must declare.
        what: the setting that adds the noise, for messages.
    """
    if not declares(strategy, noise):
        why = f"does not declare that it reads nothing else of their data ({DECLARE.format(noise)})"
        why = "reads or sends more than these" if "private_with" in vars(type(strategy)) else why
        raise ConfigurationError(f"{what} covers only the clients' models, but {type(strategy).__name__} {why}. {ELSEWHERE}")


def check_own_metrics(strategy: Strategy, what: str) -> None:
    """Refuse metrics of the clients' own data that influence the model."""
    if strategy.local_metric is not None or strategy.global_metric is not None:
        raise ConfigurationError(
            f"{type(strategy).__name__} reads metrics that clients compute on their own data, which {what} does not cover. "
            + ELSEWHERE
        )


def check_data(data: FederatedDataModule, what: str, rebalancing: str) -> None:
    """Refuse data that clients learn of each other, or by which an example counts more than once.

    Args:
        data: the data.
        what: the setting that adds the noise, for messages.
        rebalancing: why it does not allow that examples are repeated, after the setting that does.
    """
    if data.server_set == "clients":
        raise ConfigurationError(
            f"'data.server_set' is clients, so the server's metrics depend on the clients' own data, which {what} does not "
            "cover. Set it to datamodule."
        )
    if getattr(data.datamodule, "standardize", False):
        raise ConfigurationError(
            "'data.datamodule.standardize' is true, so every client's inputs depend on the mean and the standard deviation of "
            f"all clients' rows, which {what} does not cover. Set it to false, and scale the files by public numbers."
        )
    if data.rebalancing is not None:
        raise ConfigurationError(f"'data.rebalancing' {rebalancing}. Remove one of them.")
