"""Log the results of a round to the loggers and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.reporting.rounds import client_metrics, quantiles, round_metrics
from fl_lightning.reporting.tables import write_matrix
from fl_lightning.types import ClientUpdate


def log_round(
    trainer: Trainer,
    updates: Sequence[ClientUpdate],
    own: Mapping[str, float],
    client_columns: bool,
    name_of: Callable[[int], str] = str,
) -> None:
    """Log the metrics of a round and of its clients.

    Args:
        trainer: the outer Trainer.
        updates: the updates of the round.
        own: additional metrics, logged as ``federation/<name>``; named ``<name>/<client>`` if they belong to a client.
        client_columns: whether to log each client's metrics; otherwise their quantiles over the clients of the round.
        name_of: returns the name of a client.
    """
    more, columns = {f"federation/{name}": float(value) for name, value in own.items()}, client_metrics(updates, name_of)
    if not client_columns:
        more, columns = quantiles(more), quantiles(columns)
    figures = round_metrics(updates) | more
    figures |= {"round": float(trainer.current_epoch), "federation/threads": float(torch.get_num_threads())}
    # Do not use ``module.log``: its averages over batches and ranks cost a millisecond per metric.
    for known in (trainer.callback_metrics, trainer.logged_metrics):
        known.update({name: torch.tensor(value) for name, value in figures.items()})
    logged = columns | figures | {"epoch": float(trainer.current_epoch)}
    for logger in trainer.loggers:
        logger.log_metrics(logged, step=trainer.global_step - 1)


def write_matrices(trainer: Trainer, matrices: Mapping[str, Tensor], data: FederatedDataModule) -> None:
    """Write client-by-client matrices to files next to the CSV logger's."""
    for name, matrix in matrices.items():
        write_matrix(trainer, name, matrix, [data.client_name(client) for client in range(data.num_clients)])
