"""What a server with sites holds in memory, in models: whatever the number of sites, and never a copy more."""

from typing import Any

import pytest
import sites_over_bytes as net
import torch
from live_memory import counted

from fl_lightning.flower import envelope
from fl_lightning.messages import ClientInfo
from fl_lightning.types import ClientUpdate, Snapshot
from fl_lightning.wire import from_bytes

HIDDEN = 2000
"""The model has 16 MB; blocks that stay in the cache are a thirtieth of it."""


def peak_of_a_fit(sites: int, hidden: int, folder: Any) -> float:
    """Return the peak memory, in models, of three rounds with a checkpoint each, the model itself included.

    Sites send a model back, as bytes that exist from when they are asked for.
    """
    size = 6 * hidden + hidden + hidden * hidden + hidden + hidden * 3 + 3
    model = Snapshot(torch.zeros(size), torch.zeros(0, dtype=torch.int64))

    def echo(name: str, parts: Any, ask: Any) -> bytearray:
        asked = from_bytes(parts["order"])
        if asked["kind"] == "describe":
            return envelope.reply(info=ClientInfo(name, 10))
        updates = [ClientUpdate(task.client, task.round_idx, 10, 1, 0.5, model=model) for task in asked.get("orders", ())]
        return envelope.reply(replies=updates, releases={})

    net.prepare(folder, sites=sites, start=False)
    net.HOOK["hook"] = echo
    config = net.configuration()
    config["model"]["init_args"]["network"]["init_args"] |= {"hidden": [hidden, hidden], "dropout": 0.0}
    with counted() as live:
        net.federate(config)
    return live.peak / (4 * size)


@pytest.mark.slow
def test_a_server_holds_few_copies_of_the_model(tmp_path, monkeypatch):
    """The model, its sum in 8 bytes per number, and one reply; the echo has one more, and so may pytest."""
    send = net.BytesTransport.send
    keeping = lambda self, client, parts, seconds: send(self, client, {"order": bytes(parts["order"])}, seconds)  # noqa: E731
    monkeypatch.setattr(net.BytesTransport, "send", keeping)
    peak_of_a_fit(2, 5, tmp_path / "small")  # loads modules
    assert 5 <= peak_of_a_fit(12, HIDDEN, tmp_path / "large") < 7
