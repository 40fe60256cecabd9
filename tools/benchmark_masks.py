"""What masks cost: seconds and bytes of a round beside the same round without them, by turns.

    python tools/benchmark_masks.py clients --clients 10 100 1000    # simulated rounds with a tiny model, in one process
    python tools/benchmark_masks.py steps --parameters 25000000      # each step of a client and of the server
    python tools/benchmark_masks.py flower --hidden 32               # over real processes of Flower, TLS and keys

Without masks, each repeat runs twice, before and after the run with masks: the second is the control, and a ratio within its
spread says nothing. Medians over repeats, and over rounds with 'flower'. One thread in this process; 'clients' counts its
processor's time, so that other processes matter less.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from benchmark_loop import Plain, Sizes, quiet
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FederatedDataModule, FederatedOrchestrator, LocalTraining, SecureAggregation, keep_freed_memory
from fl_lightning.functional.sums import Grid, Sums
from fl_lightning.functional.words import add_words, from_words, to_words
from fl_lightning.options.secure_aggregation.client import MaskingClient
from fl_lightning.options.secure_aggregation.description import RoundDescription, RoundTerms
from fl_lightning.options.secure_aggregation.keys import KeyRing, key_from, openssh
from fl_lightning.options.secure_aggregation.messages import announcement_in, packed, packed_announcement, unpacked
from fl_lightning.options.secure_aggregation.server import MaskedRound

KEY_BYTES, SEALED_BYTES, SHARE_BYTES, SIGNATURE_BYTES = 192, 82, 33, 96
"""An announcement (two keys, a commitment, a signature), two sealed shares, an opened share, and a signature of a list."""
WORDS_BESIDE = 6
"""The words beside the model's: the sums of weights, losses and examples take two each."""


# ---------------------------------------------------------------- simulated rounds


class Rows(L.LightningDataModule):
    """Ten random examples of 20 numbers for each client."""

    def __init__(self, clients: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        count = 10 * clients
        self.rows = torch.rand(count, 20, generator=draw), torch.randint(0, 10, (count,), generator=draw)

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*self.rows), batch_size=10)


class ProcessorClock(L.Callback):
    """Count the processor's seconds of all rounds but the first."""

    seconds = 0.0

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.current_epoch == 1:
            self.seconds = -time.process_time()

    def on_train_end(self, *_: Any) -> None:
        self.seconds += time.process_time()


def simulated(clients: int, masked: bool, rounds: int) -> tuple[float, float, float]:
    """Return the processor's seconds of a round, and the bytes of a client up and down; the first round is not counted."""
    quiet()
    clock = ProcessorClock()
    option = SecureAggregation() if masked else None
    federation = FederatedOrchestrator(local=LocalTraining(engine="fabric"), secure_aggregation=option)
    trainer = L.Trainer(
        max_epochs=rounds + 1,
        accelerator="cpu",
        callbacks=[federation, clock],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10))  # 1,002 parameters
    trainer.fit(Plain(net), FederatedDataModule(Rows(clients), Sizes([10] * clients)))
    up, down = (float(trainer.callback_metrics[f"federation/bytes_{way}"]) / clients for way in ("up", "down"))
    return clock.seconds / rounds, up, down


def clients(args: argparse.Namespace) -> None:
    """Print seconds and bytes of simulated rounds by the number of clients."""
    simulated(3, True, 1)
    print("| clients | s without masks | s with | ratio | control | bytes up: measured, formula | down: measured, formula |")
    print("|---|---|---|---|---|---|---|")
    for number in args.clients:
        runs = [[simulated(number, masked, args.rounds) for masked in (False, True, False)] for _ in range(args.repeats)]
        plain, masked, again = ([run[k][0] for run in runs] for k in range(3))
        _, up, down = runs[0][1]
        print(
            f"| {number:,} | {statistics.median(plain):.3f} | {statistics.median(masked):.3f} | {ratio(masked, plain)} | "
            f"{ratio(again, plain)} | {up:,.0f}, {bytes_up(number, 1002):,} | {down:,.0f}, {bytes_down(number, 1002):,} |",
            flush=True,
        )


def ratio(some: list[float], others: list[float]) -> str:
    """Return the median ratio of paired measurements, and their spread."""
    found = sorted(one / other for one, other in zip(some, others, strict=True))
    return f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"


def neighbours(number: int) -> int:
    """Return with how many others a client shares masks: all, above 100 clients 8 for each doubling of their number."""
    return number - 1 if number <= 100 else 8 * (number - 1).bit_length() // 2 * 2


def bytes_up(number: int, parameters: int) -> int:
    """Return the bytes that a client sends in a round: words, keys, sealed shares, a list, opened shares (one its own)."""
    around = neighbours(number)
    return 8 * (parameters + WORDS_BESIDE) + KEY_BYTES + SEALED_BYTES * around + SIGNATURE_BYTES + SHARE_BYTES * (around + 1)


def bytes_down(number: int, parameters: int) -> int:
    """Return the bytes that a client gets in a round: the model, keys, sealed shares and signatures of its neighbours."""
    return 4 * parameters + (KEY_BYTES + SEALED_BYTES + SIGNATURE_BYTES) * neighbours(number)


# ---------------------------------------------------------------- steps of a large model


class Cohort:
    """Lead clients with keys of their own through one round in this process, and note the seconds of each step."""

    def __init__(self, number: int, parameters: int) -> None:
        keys = [key_from(secrets.token_bytes(32)) for _ in range(number)]
        peers = {f"site {k}": openssh(key) for k, key in enumerate(keys)}
        self.rings = [KeyRing(key, peers) for key in keys]
        grids = {"state": Grid(((parameters, 1.0),), 1.0), "weight": Grid(((1, None),), 1.0)}
        cohort = tuple((k, f"site {k}") for k in range(number))
        sizes = {"state": parameters, "weight": 1}
        self.description = RoundDescription("f", "c", "s", 0, cohort, 0.67, "m", "w", sizes, grids)
        self.clients: dict[int, MaskingClient] = {}
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Note the seconds of the body."""
        begun = time.perf_counter()
        yield
        self.seconds.setdefault(step, []).append(time.perf_counter() - begun)

    def ask(self, requests: Mapping[int, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
        """Return the clients' answers."""
        answers = {}
        for client, request in requests.items():
            with self.timed(f"client: {request['step']}"):
                answers[client] = self._answer(client, request)
        return answers

    def _answer(self, client: int, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if request["step"] == "keys":
            seen = RoundTerms.read_terms(request["terms"])
            self.clients[client] = MaskingClient(client, seen, self.rings[client], lambda _: secrets.token_bytes(32))
            return {"keys": packed_announcement(self.clients[client].announce())}
        masking = self.clients[client]
        if request["step"] == "shares":
            announced = {k: announcement_in(one) for k, one in unpacked(request["announced"]).items()}
            return {"sealed": packed(masking.share(announced))}
        if request["step"] == "list":
            return {"signature": masking.agree(request["delivered"]).hex()}
        seeds, keys = masking.open(unpacked(request["signatures"]))
        return {"seeds": packed(seeds), "secrets": packed(keys)}

    def run(self, state: torch.Tensor, lost: int) -> torch.Tensor:
        """Return the sum of all clients' states but the lost ones', under masks."""
        layout, number = self.description.layout, len(self.description.cohort)
        server = MaskedRound(self.description, self.ask)
        server.begin()
        total = layout.zeros()
        for client, note in server.notes().items():
            with self.timed("client: open shares"):
                self.clients[client].receive(RoundDescription.read(note["description"]), unpacked(note["sealed"]))
            if client >= number - lost:
                continue
            with self.timed("client: words"):
                own = Sums(grids=self.description.grids, for_masks=True)
                own.add("state", state, 0.5)
                own.add("weight", 0.5)
                words = to_words(own, layout, number)
            with self.timed("client: mask"):
                self.clients[client].mask(words)
            with self.timed("server: add words"):
                add_words(total, words, layout)
        left = [*range(number - lost)]
        with self.timed("server: remove masks, with the clients' steps"):
            server.open(total, left, left)
        with self.timed("server: sum"):
            return from_words(total, layout).take("state")


def plain_sum(number: int, state: torch.Tensor, grids: Mapping[str, Grid]) -> tuple[torch.Tensor, float]:
    """Return the exact sum of so many updates without masks, and its seconds."""
    begun = time.perf_counter()
    sums = Sums(grids=grids)
    for _ in range(number):
        sums.add("state", state, 0.5)
    return sums.take("state"), time.perf_counter() - begun


def steps(args: argparse.Namespace) -> None:
    """Print the seconds of each step of a round with a large model, and those of the exact sum without masks."""
    state = torch.randn(args.parameters).clamp_(-1, 1)
    number, lost = args.sites, args.lost
    without: list[float] = []
    seconds: dict[str, list[float]] = {}
    for _ in range(args.repeats):
        cohort = Cohort(number, args.parameters)
        for _ in range(2):  # the control
            expected, took = plain_sum(number - lost, state, cohort.description.grids)
            without.append(took)
        if not torch.equal(cohort.run(state, lost), expected):
            raise SystemExit("The sum under masks differs from the one without.")
        for step, values in cohort.seconds.items():
            seconds.setdefault(step, []).extend(values)
    print(f"{args.parameters:,} parameters, {number} sites, {lost} lost after their shares; equal to the bit")
    print("| step | s, median | from, to |\n|---|---|---|")
    for step, values in {**seconds, f"without masks: sum of {number - lost}": without}.items():
        print(f"| {step} | {statistics.median(values):.3f} | {min(values):.3f}, {max(values):.3f} |")


# ---------------------------------------------------------------- sites over Flower


def flower(args: argparse.Namespace) -> None:
    """Print the seconds per round of sites that are processes of Flower, with masks and without."""
    from federation_demo import CONFIG, DATA, Federation, digits, same_bits, weights

    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    config = yaml.safe_load(CONFIG)
    config["model"]["init_args"]["network"]["init_args"]["hidden"] = args.hidden
    config["data"]["datamodule"]["init_args"]["batch_size"] = 100
    clock = {"class_path": "benchmark_flower.RoundClock", "init_args": {"path": "seconds.json"}}
    config["trainer"] |= {"max_epochs": args.rounds + 2, "callbacks": [clock]}
    secure = ("--federation.secure_aggregation.threshold", "0.67")
    kinds = {"without": (), "masks": secure, "without, again": ()}
    forms = {"plain": DATA, "masks": DATA + "  update: {masks: {peers: peers}}\n"}
    with tempfile.TemporaryDirectory() as place, ExitStack() as running:  # two federations, of which one trains at a time
        federations: dict[str, Any] = {}
        for form, data in forms.items():
            federation = Federation(Path(place) / form, [f"site_{k}" for k in range(args.sites)], life=3000)
            federation.folder.mkdir()
            running.callback(federation.stop)
            federation.prepare(*digits(100 + 30 * args.sites), test=100, data=data)
            (federation.folder / "server" / "config.yaml").write_text(yaml.safe_dump(config))
            federation.serve()
            federation.register()
            exchange_keys(federation)
            for name in federation.names:
                federation.start_site(name)
            federations[form] = federation
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for repeat in range(args.repeats):
            for kind, more in kinds.items():
                seconds[kind] += rounds_of(federations["masks" if more else "plain"], f"{kind} {repeat}", *more)
        plain, masked = (federations[form].folder / "server" for form in forms)
        same = same_bits(weights(plain / "without 0"), weights(masked / "masks 0"))
    print(f"{args.sites} sites, hidden layers of {args.hidden}; the bits are {'equal' if same else 'DIFFERENT'}")
    print("| run | s per round, median | from, to | ratio |\n|---|---|---|---|")
    for kind, values in seconds.items():
        middle = statistics.median(values)
        share = middle / statistics.median(seconds["without"])
        print(f"| {kind} | {middle:.2f} | {min(values):.2f}, {max(values):.2f} | {share:.2f} |")


def exchange_keys(federation: Any) -> None:
    """Give each site the public keys of all."""
    for name in federation.names:
        peers = federation.folder / name / "peers"
        peers.mkdir()
        for file in (federation.folder / "server").glob("*.pub"):
            (peers / file.name).write_bytes(file.read_bytes())


def rounds_of(federation: Any, name: str, *more: str) -> list[float]:
    """Return the seconds of a fit's rounds but the first two, which load what later ones keep."""
    fit = federation.start_fit("--trainer.default_root_dir", name, *more)
    if fit.wait(federation.life):
        logs = [*federation.folder.glob("server/*.log"), *federation.folder.glob("*/site.log")]
        logs += federation.folder.glob("*/site_*/supernode.log")
        raise SystemExit("\n".join(f"{log}:\n{log.read_text()[-1500:]}" for log in logs))
    found: list[float] = json.loads((federation.folder / "server" / "seconds.json").read_text())[2:]
    return found


MEASUREMENTS: dict[str, Callable[[argparse.Namespace], None]] = {"clients": clients, "steps": steps, "flower": flower}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=MEASUREMENTS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2, help="of a run, after those that are not counted")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000], help="of 'clients'")
    parser.add_argument("--parameters", type=int, default=25_000_000, help="of 'steps'")
    parser.add_argument("--sites", type=int, default=10, help="of 'steps' and 'flower'")
    parser.add_argument("--lost", type=int, default=0, help="the sites of 'steps' that are lost after their shares")
    parser.add_argument("--hidden", type=int, nargs="+", default=[32], help="the hidden layers of 'flower'")
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    MEASUREMENTS[args.what](args)


if __name__ == "__main__":
    main()
