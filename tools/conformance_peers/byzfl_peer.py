"""ByzFL's robust rules, on FedAvg's clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import byzfl
import numpy as np
from common import Case, Result, Run, main, server_rounds


def rule(make: Callable[[int], Any]) -> Run:
    def run(case: Case) -> Result:
        combine = make(case.settings["attackers"])
        return server_rounds(case, lambda w, cohort, models: combine(np.stack(models)))

    return run


RUNS = {
    "Krum": rule(byzfl.Krum),
    "multi-Krum": rule(byzfl.MultiKrum),
    "trimmed mean": rule(byzfl.TrMean),
    "median": rule(lambda f: byzfl.Median()),
}
# With f + 1 it sums over the paper's m - f - 2 neighbours, and averages m - f - 1 models.
CHANGED = {"Krum": rule(lambda f: byzfl.Krum(f + 1)), "multi-Krum": rule(lambda f: byzfl.MultiKrum(f + 1))}

if __name__ == "__main__":
    main("byzfl", RUNS, CHANGED)
