"""What a server says of rounds that count nothing or train nothing."""

import warnings
from pathlib import Path

import pytest
import sites_over_bytes as net


def test_all_weights_of_0_are_said(monkeypatch):
    net.prepare(start=False)
    config = net.configuration(1, strategy=net.of("AdaFed", metric="val_f1_macro", power=2))
    Path("test.csv").write_text("\n".join(Path("test.csv").read_text().splitlines()[:3]) + "\n")
    monkeypatch.setattr("fl_lightning.server.evaluators.Evaluators.score", lambda *args, **kwargs: 0.0)
    with pytest.warns(UserWarning, match="AdaFed gave all clients of a round the weight 0, so their plain average was used"):
        net.simulate(config)


@pytest.mark.slow
def test_a_resume_with_fewer_rounds_is_said():
    net.prepare(start=False)
    net.simulate(net.configuration())
    last = ("simulated", "--ckpt_path", "last", "--trainer.max_epochs")
    with pytest.warns(UserWarning, match=r"Nothing was trained: the checkpoint has 3 rounds, and 'trainer.max_epochs' is 2"):
        net.simulate(net.configuration(), *last, "2")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Nothing was trained")
        net.simulate(net.configuration(), *last, "4")
