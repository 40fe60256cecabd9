"""W on one device, with clients side by side: ranks that share the device, as processes of their own."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
from gpu.ranks import launch
from gpu.setting import Findings, Setting


def ranks_on_one_device(setting: Setting, found: Findings) -> None:
    """Seconds per round of W in bf16 with one, two and four ranks on one device."""
    for ranks in (1, 2, 4)[: setting.of(3, 2)]:
        failure, told = launch("side_by_side.py", ["--device", setting.device], ranks, 45)
        found.require(not failure, f"{ranks} ranks: {failure}")
        if not failure:
            found[f"{ranks} ranks"] = json.loads(told[0].splitlines()[-1])["seconds_per_round"]


def main() -> None:
    """Measure as one rank of several."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--port", required=True)
    args = parser.parse_args()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": args.port, "NODE_RANK": str(args.node), "LOCAL_RANK": "0"}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}

    from benchmark_gpu import workload
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    def flags() -> dict[str, object]:
        if args.nodes == 1:
            return {"devices": 1}
        strategy = DDPStrategy(process_group_backend="gloo", cluster_environment=LightningEnvironment())
        return {"devices": 1, "num_nodes": args.nodes, "strategy": strategy}

    work = workload("W", args.device, 5)
    seconds = [work.ours(ranks=flags(), precision="bf16-mixed", engine="fabric", skipped=1) for _ in range(3)]
    print(json.dumps({"seconds_per_round": round(sorted(seconds)[1], 4)}), flush=True)


if __name__ == "__main__":
    main()
