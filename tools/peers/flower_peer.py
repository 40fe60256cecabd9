"""Flower: a ClientApp and a ServerApp run by ``flwr.simulation.run_simulation`` on its Ray backend.

In the manner of Flower's PyTorch quickstart: message API, ``FedAvg`` weighted by "num-examples", a DataLoader over a
TensorDataset for each client. Chosen for speed: 1 CPU per client, hence one worker process for each core (--workers; the
other peers use one process), no evaluation by clients, the central one by ``evaluate_fn``, each worker builds the
network and the tensors once and keeps them, no dashboard, no forwarding of worker logs, warnings only, telemetry and
usage statistics off. ``run_simulation`` is deprecated since 1.41 in favour of ``flwr run``, which starts the same
runtime; it is used here because it needs no project folder. Time is taken where the server ends a round.
"""

from __future__ import annotations

import logging
import os

import torch
import workload
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

os.environ["FLWR_TELEMETRY_ENABLED"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # before the import

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of one client, in a worker process."""
    work = workload.load(str(message.content["config"]["workload"]))
    images, labels = work.clients[int(context.node_config["partition-id"])]
    network = workload.resident_network(work.name)
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=work.lr)
    for x, y in DataLoader(TensorDataset(images, labels), batch_size=work.batch_size, shuffle=True):
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics}), reply_to=message)


def run(work: workload.Workload, rounds: int, workers: int) -> None:
    clock = workload.Clock()
    server_app, results = ServerApp(), []
    server_network = work.network()
    loader = DataLoader(TensorDataset(*work.test), batch_size=work.test_batch_size) if work.test else []

    def end_of_round(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        metrics = None
        if server_round and work.test:  # Flower also calls it before the first round
            server_network.load_state_dict(arrays.to_torch_state_dict())
            server_network.eval()
            with torch.inference_mode():
                hits = sum(int((server_network(x).argmax(1) == y).sum()) for x, y in loader)
            metrics = MetricRecord({"accuracy": hits / len(work.test[1])})
        if server_round:
            clock.end_of_round()
        return metrics

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=work.cohort / len(work.clients),
            fraction_evaluate=0.0,
            min_train_nodes=work.cohort,
            min_available_nodes=len(work.clients),
        )
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(work.network().state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"workload": work.name}),
            evaluate_fn=end_of_round,
        )
        results.append(result)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=len(work.clients),
        backend_config={
            "init_args": {"num_cpus": workers, "include_dashboard": False, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    weights = results[0].arrays.to_torch_state_dict()
    workload.report("flower", "flwr", work, rounds, clock, weights, workers=workers)


def main() -> None:
    parser = workload.arguments(__doc__)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes; all cores unless told")
    args = parser.parse_args()
    run(workload.load(args.workload), args.rounds or workload.load(args.workload).rounds, args.workers)


if __name__ == "__main__":
    import flower_peer  # so that workers import the client's code; that of __main__ would be sent with every message

    flower_peer.main()
