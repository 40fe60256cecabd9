"""One rank of a federation: trains algorithms of the tests and, on rank 0, writes their weights.

Ranks are told apart as nodes of one device each, since Lightning refuses to give one GPU to two ranks of a node.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])
from gpu.setting import Setting  # noqa: E402 - it makes the tests' federations importable


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--port", required=True)
    parser.add_argument("--algorithms", nargs="+", required=True)
    args = parser.parse_args()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": args.port, "NODE_RANK": str(args.node), "LOCAL_RANK": "0"}
    os.environ |= {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}

    import torch
    from algorithms import outcome, prepare
    from federations import trainer
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    finals = {}
    for name in args.algorithms:
        module, data, federation = prepare(name)
        federation.local = replace(federation.local, precision="32-true")
        strategy = DDPStrategy(process_group_backend=args.backend, cluster_environment=LightningEnvironment())
        accelerator = Setting(args.device).accelerator
        run = trainer(2, federation, accelerator=accelerator, devices=1, num_nodes=args.nodes, strategy=strategy)
        run.fit(module, data)
        finals[name] = {key: tensor.cpu() for key, tensor in outcome(module, federation).items()}
    finals["_backend"] = {torch.distributed.get_backend(): torch.tensor(torch.distributed.get_world_size())}
    if args.node == 0:
        torch.save(finals, args.out)


if __name__ == "__main__":
    main()
