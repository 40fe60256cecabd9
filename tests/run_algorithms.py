"""Every algorithm in one launch on two ranks: writes the final weights of each."""

from __future__ import annotations

import sys

import torch
from algorithms import ALGORITHMS, outcome, prepare
from federations import trainer


def main(out: str) -> None:
    finals = {}
    for name in ALGORITHMS:
        module, data, federation = prepare(name)
        if name in ("fedmedian", "scaffold"):  # by way of files; one rank holds everything in memory
            federation.memory_limit = 0.0
        run = trainer(2, federation, devices=2, strategy="ddp")
        run.fit(module, data)
        finals[name] = outcome(module, federation)
        first = run.is_global_zero
    if first:
        torch.save(finals, out)


if __name__ == "__main__":
    main(sys.argv[1])
