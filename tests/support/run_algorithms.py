"""Every algorithm in one launch on two nodes of one rank each: writes the final weights of each."""

from __future__ import annotations

import sys
import time
from unittest.mock import patch

import torch
from algorithms import ALGORITHMS, outcome, prepare
from federations import trainer

from fl_lightning.clients.memory import ClientMemory

sweep = ClientMemory.sweep


def sweep_late(memory: ClientMemory, checkpoints) -> None:
    """A slow disk of the first rank: the other one would be in its next round by now, and write files."""
    time.sleep(0.5)
    sweep(memory, checkpoints)


@patch.object(ClientMemory, "sweep", sweep_late)
def main(out: str) -> None:
    finals = {}
    for name in ALGORITHMS:
        module, data, federation = prepare(name)
        if name in ("fedmedian", "scaffold", "personal"):  # by way of files; one rank holds everything in memory
            federation.memory_limit = 0.0
        run = trainer(2, federation, devices=1, num_nodes=2, strategy="ddp")
        run.fit(module, data)
        finals[name] = outcome(module, federation)
        memory = federation._run.memory
        for client in range(data.num_clients):
            memory.kept(client)  # an error where its file is gone
        first = run.is_global_zero
    if first:
        torch.save(finals, out)


if __name__ == "__main__":
    main(sys.argv[1])
