"""Held-out sites over the network: the bits of the simulation, no training order, and their own numbers."""

from pathlib import Path
from typing import Any

import pytest
from sites_over_bytes import LINES, NAMES, configuration, federate, prepare, restart, same_bits, simulate

from fl_lightning.flower import envelope
from fl_lightning.flower.server.exchange import Exchange
from fl_lightning.flower.wire.transport import Answer


@pytest.mark.slow
@pytest.mark.parametrize("names", ["south", "north west"])
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


class Recorded:
    """A transport that records what it was asked."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def absent(self) -> dict[int, str]:
        return {1: "it is offline"}

    def send(self, client: int, parts: Any, seconds: float | None) -> None:
        self.sent.append(client)

    def answers(self) -> Any:
        return iter([Answer(client, envelope.reply(number=client)) for client in self.sent])


def test_held_out_sites_are_the_last_clients_and_keep_their_numbers():
    transport: Any = Recorded()
    exchange = Exchange(transport, "abc", [0, 2, 1], lambda name, digest: None)
    assert exchange.absent() == {2: "it is offline"}
    for client in range(3):
        exchange.post(client, b"")
    assert transport.sent == [0, 2, 1]
    answers = exchange.answers(lambda client, found: found["number"])
    assert list(answers) == [(0, 0), (1, 2), (2, 1)]
