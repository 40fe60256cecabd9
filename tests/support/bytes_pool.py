"""A pool whose clients live in processes of their own, and get everything as bytes."""

import multiprocessing
from collections.abc import Callable, Collection, Sequence
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import lightning as L
import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator
from fl_lightning.clients.client import Client
from fl_lightning.clients.memory import ClientMemory
from fl_lightning.clients.module_copy import client_copy
from fl_lightning.clients.site import Site
from fl_lightning.core.federation import PassesOn, RunningChains, Take, Tasks
from fl_lightning.errors import ClientError
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.settings import SiteSettings
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.messages import ClientInfo, ClientTask, EvalOrder, EvalReport, RoundCommit, ServerModel
from fl_lightning.server.fit import Assembly
from fl_lightning.settings.local_training import Place
from fl_lightning.types import Snapshot
from fl_lightning.utilities.collectives import Collectives
from fl_lightning.wire import from_bytes, to_bytes

Make = Callable[[], tuple[L.LightningModule, FederatedOrchestrator]]


class Share(L.LightningDataModule):
    """One part of a client's examples, as the training set of a datamodule of its own."""

    def __init__(self, rows: tuple[torch.Tensor, ...], batch_size: int, shuffle: bool) -> None:
        super().__init__()
        self.rows, self.batch_size, self.shuffle = rows, batch_size, shuffle
        self.eval_batch_size = 16  # that of Blobs, so that losses are summed in the same order

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*self.rows), batch_size=self.batch_size, shuffle=self.shuffle)


def serve(connection: Connection, make: Make, parts: dict[str, Share], client: int, num_clients: int) -> None:
    """Be a client until the connection ends."""
    torch.set_num_threads(1)
    module, federation = make()
    site = Site(
        Client(
            module=client_copy(module),
            data=SiteData(SiteSettings(**parts)),
            settings=federation,
            num_clients=num_clients,
            place=Place(local=federation.local),
            memory=ClientMemory(),
            secret=SecretKey.draw(),
            drop_single=any(isinstance(part, _BatchNorm) for part in module.modules()),  # as the server does in a simulation
            undoable=True,
        )
    )
    while True:
        try:
            content = connection.recv_bytes()
        except EOFError:
            return
        try:
            connection.send_bytes(b"\0" + site.answer(content))
        except Exception as error:
            connection.send_bytes(b"\1" + str(error).encode())


class Workers:
    """Processes of the clients, which outlive the server; each has its examples and no others."""

    def __init__(self, make: Make, data: FederatedDataModule, sizes: Sequence[int]) -> None:
        context, whole = multiprocessing.get_context("fork"), data.datamodule
        data.setup("fit")
        names = {"training": "datamodule", "validation": "validation", "test": "test"}
        given = {own: part for name, own in names.items() if (part := getattr(data.splits, name)) is not None}
        self.connections: list[Connection] = []
        self.sizes = sizes
        self._processes = []
        for client in range(len(sizes)):
            mine, theirs = context.Pipe()
            rows = {name: tuple(t[part[client]] for t in whole.train) for name, part in given.items()}
            parts = {name: Share(own, whole.batch_size, whole.shuffle) for name, own in rows.items()}
            process = context.Process(target=serve, args=(theirs, make, parts, client, len(sizes)), daemon=True)
            process.start()
            theirs.close()
            self.connections.append(mine)
            self._processes.append(process)

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join(10)
        for connection in self.connections:
            connection.close()


class BytesPool:
    """The clients of :class:`Workers`; see :class:`ClientPool`."""

    simulated = False

    def __init__(self, workers: Workers, comm: Collectives) -> None:
        self._workers, self.comm = workers, comm

    def _send(self, client: int, message: Any) -> None:
        self._workers.connections[client].send_bytes(to_bytes(message))

    def _receive(self, client: int) -> Any:
        reply = self._workers.connections[client].recv_bytes()
        if reply[:1] == b"\1":
            raise ClientError(reply[1:].decode())
        return from_bytes(reply[1:]) if len(reply) > 1 else None

    def clients(self) -> tuple[ClientInfo, ...]:
        return tuple(ClientInfo(str(k), size) for k, size in enumerate(self._workers.sizes))

    def publish(self, model: ServerModel) -> None:
        for client in range(len(self._workers.sizes)):
            self._send(client, model)
        for client in range(len(self._workers.sizes)):
            self._receive(client)

    def train(self, chains: Sequence[Tasks], take: Take, passes_on: PassesOn, scored: int = 0) -> None:
        """Last first."""
        asked: list[int] = []

        def begin(task: ClientTask) -> None:
            self._send(task.client, task)
            asked.append(task.client)

        running = RunningChains(chains, begin, passes_on)
        for tasks in chains:
            begin(tasks[0])
        while asked:
            chain = running.add(self._receive(asked.pop()))
            if chain is not None:
                take(chain)

    def under_way(self) -> dict[int, bytes]:
        return {}

    def evaluate(self, orders: Sequence[EvalOrder]) -> list[EvalReport]:
        reports = []
        for order in orders:
            self._send(order.client, order)
            reports.append(self._receive(order.client))
        return reports

    def own_models(self) -> list[Snapshot | None]:
        raise NotImplementedError

    def counts(self) -> dict[str, dict[int, int]]:
        return {}

    def settle(self, round_idx: int, accepted: Collection[int], saved_round: int) -> dict[str, float]:
        for client in range(len(self._workers.sizes)):
            self._send(client, RoundCommit(round_idx, tuple(accepted), saved_round))
            self._receive(client)
        return {}

    def state_dict(self) -> dict[Any, Any]:
        return {}

    def close(self) -> None:
        pass


class RemoteOrchestrator(FederatedOrchestrator):
    """The orchestrator of a federation whose clients are elsewhere."""

    workers: Workers
    clients_pool: BytesPool

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.clients_pool = BytesPool(self.workers, Collectives(trainer))
        with patch.object(Assembly, "pool", lambda _: self.clients_pool):
            super().on_fit_start(trainer, pl_module)
