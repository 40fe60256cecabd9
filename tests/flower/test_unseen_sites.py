"""Held-out sites over the network: the bits of the simulation, no training order, and their own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from sites_over_bytes import LINES, NAMES, configuration, federate, prepare, same_bits, simulate, start_site

from fl_lightning.flower.renumbered import RenumberedTransport
from fl_lightning.flower.transport import Answer

EVALUATION: dict[str, Any] = {"every_n_rounds": 1, "metric": "val_accuracy"}


def sites_with_tests(folder: Path) -> None:
    for name in NAMES:
        path = folder / name / "data.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "client_test": 0.25}))
        start_site(folder, name)


def held_out(*names: str, **federation: Any) -> dict[str, Any]:
    config = configuration(client_evaluation=EVALUATION, **federation)
    config["data"]["held_out_clients"] = list(names)
    return config


@pytest.mark.parametrize("names", [["south"], ["north", "west"]])
def test_the_bits_and_figures_of_the_simulation(names, tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    sites_with_tests(tmp_path)
    LINES.clear()
    config = held_out(*names)
    real = federate(config)
    simulated = simulate({**config, "data": {**config["data"], "client_test": 0.25}})
    assert same_bits(real, simulated)
    for file in ("unseen_clients.csv", "client_evaluation.csv"):
        assert (Path("real") / file).read_text() == (Path("simulated") / file).read_text()
    table = (Path("real") / "unseen_clients.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in table[1:]] == names
    trained = {line.split(":")[0] for line in LINES if "trained" in line}
    assert trained == set(NAMES) - set(names)


def test_a_site_keeps_the_number_by_which_it_holds_rows_back(tmp_path, monkeypatch):
    """Another site is held out in the next fit; nobody must agree to a number again."""
    prepare(tmp_path, monkeypatch)
    sites_with_tests(tmp_path)
    for name in ("north", "west"):
        federate(held_out(name), name)
        assert (Path(name) / "unseen_clients.csv").exists()


def test_sites_are_named(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    for given, said in ((0.3, "'data.held_out_clients' must be a list of sites by name"), (["east"], "has 'east', but")):
        config = configuration(client_evaluation=EVALUATION)
        config["data"]["held_out_clients"] = given
        with pytest.raises(SystemExit):
            federate(config)
        assert said in " ".join(capsys.readouterr().err.split())


def test_a_held_out_site_without_a_test_part_is_refused(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch)
    sites_with_tests(tmp_path)
    path = tmp_path / "south" / "data.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "client_test": 0.0}))
    start_site(tmp_path, "south")
    with pytest.raises(SystemExit):
        federate(held_out("south"))
    assert "needs a test part at each site. Without one: south." in " ".join(capsys.readouterr().err.split())


class Recorded:
    """A transport that records what it was asked."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.forgotten, self.closed = False, None

    def absent(self) -> dict[int, str]:
        return {1: "it is offline"}

    def send(self, client: int, parts: Any, round_idx: int, seconds: float | None) -> None:
        self.sent.append(client)

    def answers(self) -> Any:
        return iter([Answer(client, b"") for client in self.sent])

    def forget(self) -> None:
        self.forgotten = True

    def close(self, completed: bool) -> None:
        self.closed = completed


def test_renumbered_transport():
    inner = Recorded()
    outer = RenumberedTransport(inner, [0, 2, 1])
    assert outer.absent() == {2: "it is offline"}
    for client in range(3):
        outer.send(client, {}, 0, None)
    assert inner.sent == [0, 2, 1]
    assert [answer.client for answer in outer.answers()] == [0, 1, 2]
    outer.forget()
    outer.close(True)
    assert inner.forgotten
    assert inner.closed is True
