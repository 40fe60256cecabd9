"""Does each peer do the work? Batches of every round, and the weights after two rounds of C, against a plain loop.

python check_peers.py flower pfl fluke fedlab
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
import workload
from torch import Tensor
from torch.nn import functional as F


def by_hand(rounds: int) -> dict[str, Tensor]:
    """FedAvg on C: one full-batch step per client, averaged by examples."""
    work = workload.load("C")
    server = work.network()
    for _ in range(rounds):
        total = {key: torch.zeros_like(value) for key, value in server.state_dict().items()}
        for x, y in work.clients:
            client = copy.deepcopy(server).train()
            optimizer = torch.optim.SGD(client.parameters(), lr=workload.LR)
            F.cross_entropy(client(x), y).backward()
            optimizer.step()
            for key, value in client.state_dict().items():
                total[key] += value * (len(y) / sum(workload.SIZES["C"]))
        server.load_state_dict(total)
    return server.state_dict()


def recorded(peer: str, name: str, rounds: int) -> tuple[Counter[str], dict[str, Tensor]]:
    """Batches (kind and size) of a run of the peer, and its final weights."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, f"{peer}_peer.py", name, "--rounds", str(rounds)]
        environment = {**os.environ, "PEERS_CHECK": folder}
        subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parent, capture_output=True)
        batches = Counter(line for file in Path(folder).glob("*.batches") for line in file.read_text().splitlines())
        return batches, torch.load(Path(folder, "weights.pt"))


def main(peers: list[str]) -> None:
    initial, expected = workload.load("C").network().state_dict(), by_hand(2)
    for peer in peers:
        _, weights = recorded(peer, "C", 2)
        moved = max(float((expected[key] - value).abs().max()) for key, value in initial.items())
        worst = max(float((weights[key] - value).abs().max()) for key, value in expected.items())
        print(f"{peer} C: weights off by {worst:.1e} at most, moved by {moved:.1e}", flush=True)
        for name in ("S", "W"):
            batches, _ = recorded(peer, name, 2)
            for kind in ("train", "eval"):
                found = {int(line.split()[1]): times for line, times in batches.items() if line.startswith(kind)}
                steps, examples = sum(found.values()), sum(size * times for size, times in found.items())
                print(f"{peer} {name} {kind}: {steps} batches, {examples} examples in 2 rounds {found}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
