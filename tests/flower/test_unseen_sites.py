"""Held-out sites over the network: the bits of the simulation, no training order, and their own numbers."""

from pathlib import Path

import pytest
from sites_over_bytes import LINES, NAMES, configuration, federate, prepare, restart, same_bits, simulate, slow_but


@pytest.mark.parametrize("names", slow_but(["south", "north west"], "south"))
def test_the_bits_and_figures_of_the_simulation(names):
    """Another site is held out in the next fit: each keeps the number by which it holds rows back."""
    prepare()
    restart(client_test=0.25)
    config = configuration(client_evaluation={"every_n_rounds": 1, "metric": "val_accuracy"})
    config["data"]["held_out_clients"] = names.split()
    real = federate(config)
    assert {line.split(":")[0] for line in LINES if "trained" in line} == set(NAMES) - set(names.split())
    assert same_bits(real, simulate({**config, "data": {**config["data"], "client_test": 0.25}}))
    for file in ("unseen_clients.csv", "client_evaluation.csv"):
        assert Path("real", file).read_text() == Path("simulated", file).read_text()
    table = Path("real/unseen_clients.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in table[1:]] == names.split()
    config["data"]["held_out_clients"] = ["west"]
    federate(config, "next")
    assert Path("next/unseen_clients.csv").exists()
