"""Attack the noise of this package in one run with canaries, and print the epsilon that the attacker proves beside the bound.

    python tools/audit_privacy.py                    # the table of docs/privacy.md, two minutes
    python tools/audit_privacy.py --canaries 200

A canary is an example, or a client, whose gradient points in a direction of its own, and is clipped in every step: no other
influence on the model is larger, or easier to see. The attacker sees the model after the last round, and guesses for the third
of the canaries of which it is surest whether they took part (examples), or in which of two forms (clients). The bound from
below holds with 95 % (Steinke, Nasr and Jagielski 2023), and cannot exceed 5.8 for 1,000 canaries.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch.utils.data import TensorDataset

sys.path.insert(0, str(Path(__file__).parent.parent))  # this version, not an installed one

from fl_lightning import ClientPrivacy, ExamplePrivacy, FedAvg, FederatedDataModule, FederatedOrchestrator, LocalTraining
from fl_lightning.reporting.tables import text_table

DELTA = 1e-5
CASES: Sequence[tuple[str, float, int]] = [
    *(("examples", noise, rounds) for noise, rounds in ((4.0, 1), (1.0, 1), (0.5, 1), (2.0, 8))),
    *(("clients", noise, rounds) for noise, rounds in ((8.0, 1), (2.0, 1), (1.0, 1), (4.0, 8))),
]
"""What the noise hides, its multiplier, and the rounds; everybody takes part in each."""


class Directions(L.LightningModule):
    """Minimise a linear function of the weights, whose gradient on a canary is its own direction."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(size, 1, bias=False)
        torch.nn.init.zeros_(self.layer.weight)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the mean of the outputs: the gradient of one example is the example."""
        return self.layer(batch[0]).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=1.0)


def attack(protects: str, noise: float, rounds: int, canaries: int, seed: int) -> tuple[float, float, int, int]:
    """Run one federation; return epsilon as the run logs it, the attacker's bound, its correct guesses, and its guesses."""
    draw = torch.Generator().manual_seed(seed)
    tosses = torch.rand(canaries, generator=draw) < 0.5
    directions = 10 * torch.eye(canaries)
    if protects == "examples":
        clients = {"everyone": TensorDataset(directions[tosses])}
        private = LocalTraining(max_epochs=1, full_batch=True, privacy=ExamplePrivacy(1.0, noise, DELTA), threads=1)
        federation = FederatedOrchestrator(local=private, seed=seed)
    else:
        signs = torch.where(tosses, 1.0, -1.0)
        clients = {str(k): TensorDataset(directions[k : k + 1] * signs[k]) for k in range(canaries)}
        hides = [ClientPrivacy(max_norm=1.0, noise_multiplier=noise, delta=DELTA)]
        federation = FederatedOrchestrator(
            FedAvg(weighting="uniform"), transforms=hides, local=LocalTraining(max_epochs=1, threads=1), seed=seed
        )
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(max_epochs=rounds, callbacks=[federation], enable_checkpointing=False, accelerator="cpu", **quiet)
    module = Directions(canaries)
    trainer.fit(module, datamodule=FederatedDataModule.from_clients(clients, batch_size=canaries, shuffle=False))
    moved = -module.layer.weight.detach().flatten()  # a canary that took part has pushed its weight down
    scores = moved - moved.median() if protects == "examples" else moved
    surest = scores.abs().topk(max(1, canaries // 3)).indices
    correct = int(((scores > 0) == tosses)[surest].sum())
    spent = float(trainer.callback_metrics[f"federation/epsilon_of_{protects}"])
    return spent, audited_epsilon(correct, len(surest), canaries, DELTA), correct, len(surest)


def audited_epsilon(correct: int, guesses: int, canaries: int, delta: float = 0.0, confidence: float = 0.95) -> float:
    """Return an epsilon below which a mechanism with so many correct guesses is not (epsilon, delta)-private.

    Each canary is in the data, or in one of two forms, by the toss of a fair coin. An attacker who sees the results guesses the
    tosses of which it is surest, and abstains from the others (Algorithm 1). If the mechanism is (epsilon, delta)-private, at
    least v guesses are correct with at most the probability of Theorem 5.2: the tail of a binomial distribution with
    ``q = e^epsilon / (1 + e^epsilon)``, and a term in delta.

    Args:
        correct: the number v of correct guesses, from 0 to ``guesses``.
        guesses: the number r of guesses, from 0 to ``canaries``.
        canaries: the number m of canaries, >= 1.
        delta: delta, in [0, 1).
        confidence: the probability with which the bound holds, in (0, 1).

    Returns:
        The bound, >= 0. With all of r guesses correct and delta 0, it is log(q / (1 - q)) for ``q^r = 1 - confidence``.
    """
    low, high = 0.0, 1.0
    while _chance(high, correct, guesses, canaries, delta) < 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1e-4:
        middle = (low + high) / 2
        if _chance(middle, correct, guesses, canaries, delta) < 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def _chance(epsilon: float, correct: int, guesses: int, canaries: int, delta: float) -> float:
    """Return the largest probability of at least so many correct guesses under (epsilon, delta)-privacy."""
    binomial = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    tail = float(binomial.sf(correct - 1))
    if not delta or not correct:
        return min(1.0, tail)
    numbers = np.arange(1, correct + 1)
    below = binomial.cdf(correct - 1) - binomial.cdf(correct - 1 - numbers)  # from v - i to v - 1
    return min(1.0, tail + 2 * canaries * delta * float((below / numbers).max()))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--canaries", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    rows = []
    for protects, noise, rounds in CASES:
        computed, shown, correct, guesses = attack(protects, noise, rounds, args.canaries, args.seed)
        rows.append([protects, noise, rounds, f"{shown:.2f}", f"{computed:.2f}", f"{correct} of {guesses}"])
    print(text_table(["hidden", "noise multiplier", "rounds", "epsilon shown", "epsilon computed", "correct guesses"], rows))


if __name__ == "__main__":
    main()
