"""What a server with sites holds in memory, in models: whatever the number of sites, and never a copy more."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from live_memory import counted
from sites_over_bytes import BytesTransport, configuration, table

from fl_lightning import FederatedDataModule, FederatedOrchestrator, LocalTraining, TableDataModule
from fl_lightning.flower import envelope
from fl_lightning.flower.server.sites import RemoteSites
from fl_lightning.flower.wire.transport import Answer, Parts, Transport
from fl_lightning.messages import ClientInfo
from fl_lightning.types import ClientUpdate, Snapshot
from fl_lightning.wire import from_bytes

HIDDEN = 2000
"""The model has 16 MB; blocks that stay in the cache are a thirtieth of it."""


def size_of(hidden: int) -> int:
    """Return the number of parameters."""
    return 6 * hidden + hidden + hidden * hidden + hidden + hidden * 3 + 3


class Echo(BytesTransport):
    """Sites that send the server's model back, as bytes that exist from when they are asked for."""

    def __init__(self, names: Sequence[str], size: int) -> None:
        super().__init__()
        self._names, self._vector = names, torch.zeros(size)

    def send(self, client: int, parts: Parts, seconds: float | None) -> None:
        self._waiting[client] = {"order": bytes(parts["order"])}

    def answers(self) -> Iterator[Answer]:
        while self._waiting:
            client, parts = self._waiting.popitem()
            yield Answer(client, self._reply(client, from_bytes(parts["order"])))

    def _reply(self, client: int, asked: Any) -> bytearray:
        if asked["kind"] == "describe":
            return envelope.reply(info=ClientInfo(self._names[client], 10))
        if not asked.get("orders"):
            return envelope.reply(releases={})
        (task,) = asked["orders"]
        model = Snapshot(self._vector, torch.zeros(0, dtype=torch.int64))
        return envelope.reply(replies=[ClientUpdate(client, task.round_idx, 10, 1, 0.5, model=model)], releases={})


class EchoingSites(RemoteSites):
    """A federation of so many sites."""

    def __init__(self, count: int, hidden: int, model: dict[str, Any]) -> None:
        super().__init__(model=model)
        self.count, self.hidden = count, hidden

    def _connect(self, settings: Any) -> tuple[Transport, Sequence[str]]:
        names = [f"site_{k}" for k in range(self.count)]
        return Echo(names, size_of(self.hidden)), names


def peak_of_a_fit(sites: int, folder: Any, hidden: int) -> int:
    """Return the peak memory in bytes of three rounds with a checkpoint each, the model itself included."""
    from lightning.pytorch import Trainer, seed_everything

    model = configuration()["model"]
    model["init_args"]["loss"] = {"class_path": "CrossEntropy"}
    model["init_args"]["network"]["init_args"] |= {"hidden": [hidden, hidden], "dropout": 0.0}
    seed_everything(0)
    pool = EchoingSites(sites, hidden, model)
    for name in ("few.csv", "test.csv"):
        (folder / name).write_text("a,b,c,d,e,f,digit\n" + "".join(f"{k},1,0,2,1,3,{k % 3}\n" for k in range(9)))
    data = FederatedDataModule(TableDataModule(**table("few.csv", test_path="test.csv")["init_args"]))
    federation = FederatedOrchestrator(pool=pool, local=LocalTraining(threads=1))
    flags: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "num_sanity_val_steps": 0}
    module = pool.build_model()
    with counted() as live:
        Trainer(max_epochs=3, callbacks=[federation], enable_model_summary=False, default_root_dir=folder, **flags).fit(
            module, data
        )
    assert len(list(folder.rglob("*.ckpt"))) >= 1
    return live.peak


@pytest.mark.slow
def test_a_server_holds_few_copies_of_the_model(tmp_path):
    """The model, its sum in 8 bytes per number, and one reply; the echo has one more, and so may pytest."""
    peak_of_a_fit(2, tmp_path, 5)  # loads modules
    models = peak_of_a_fit(12, tmp_path, HIDDEN) / (4 * size_of(HIDDEN))
    assert 5 <= models < 7
