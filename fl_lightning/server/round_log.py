"""What a round leaves in the loggers and on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.reporting.rounds import client_metrics, quantiles, round_metrics
from fl_lightning.reporting.tables import write_matrix
from fl_lightning.types import ClientUpdate


def log_round(trainer: Trainer, updates: Sequence[ClientUpdate], own: Mapping[str, float], client_columns: bool) -> None:
    """Log a round's figures and each client's.

    Args:
        trainer: the outer one.
        updates: of the round.
        own: more figures, as ``federation/<name>``; ``<name>/<client>`` where they are of a client.
        client_columns: whether each client's figures are logged; else their quantiles over the clients of the round.
    """
    more, columns = {f"federation/{name}": float(value) for name, value in own.items()}, client_metrics(updates)
    if not client_columns:
        more, columns = quantiles(more), quantiles(columns)
    figures = round_metrics(updates) | more
    figures |= {"round": float(trainer.current_epoch), "federation/threads": float(torch.get_num_threads())}
    # Not by ``module.log``, whose averages over batches and ranks cost a millisecond for each figure.
    for known in (trainer.callback_metrics, trainer.logged_metrics):
        known.update({name: torch.tensor(value) for name, value in figures.items()})
    logged = columns | figures | {"epoch": float(trainer.current_epoch)}
    for logger in trainer.loggers:
        logger.log_metrics(logged, step=trainer.global_step - 1)


def write_matrices(trainer: Trainer, matrices: Mapping[str, Tensor], data: FederatedDataModule) -> None:
    """Keep matrices of clients by clients as files beside the CSV logger's."""
    for name, matrix in matrices.items():
        write_matrix(trainer, name, matrix, [data.client_name(client) for client in range(data.num_clients)])
