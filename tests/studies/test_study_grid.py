"""The axes of a study, as a user writes them, and the runs that they span."""

import math
from pathlib import Path

import pytest
from command_line import ROOT
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.studies.grid import Axis, Choice, full_names, read_axes, span


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("base.yaml", "iid.yaml", "skew.yaml"):
        Path(name).write_text("{}\n")


ADAFED = {"class_path": "AdaFed", "init_args": {"power": 2}}


STRATEGY, MU = "federation.strategy", "federation.local.proximal_mu"


@pytest.mark.parametrize(
    ("over", "choices"),
    [
        ({"strategy": ["FedAvg", ADAFED]}, [("FedAvg", [], {STRATEGY: "FedAvg"}), ("AdaFed(power=2)", [], {STRATEGY: ADAFED})]),
        ({"strategy": "FedAvg, AdaFed"}, [(name, [], {STRATEGY: name}) for name in ("FedAvg", "AdaFed")]),
        ({"strategy": ADAFED}, [("AdaFed(power=2)", [], {STRATEGY: ADAFED})]),
        (
            {"strategy": {"squared": ADAFED, "plain": "FedAvg"}},
            [("squared", [], {STRATEGY: ADAFED}), ("plain", [], {STRATEGY: "FedAvg"})],
        ),
        ({MU: "0, 0.01,1e-3"}, [("0", [], {MU: 0}), ("0.01", [], {MU: 0.01}), ("0.001", [], {MU: 1e-3})]),
        ({"partition": "iid.yaml,skew.yaml"}, [(name, [f"{name}.yaml"], {}) for name in ("iid", "skew")]),
        ({"partition": ["iid.yaml", "skew.yaml"]}, [(name, [f"{name}.yaml"], {}) for name in ("iid", "skew")]),
        (
            {"data.root": ["./a.npz", "x.y.Class"]},
            [("./a.npz", [], {"data.root": "./a.npz"}), ("Class", [], {"data.root": "x.y.Class"})],
        ),
        ({"algorithm": {"plain": None, "file": "skew.yaml"}}, [("plain", [], {}), ("file", ["skew.yaml"], {})]),
        (
            {"algorithm": {"both": ["iid.yaml", {"learning_rate": 0.1, "federation": {"local": {"max_epochs": 2}}}]}},
            [("both", ["iid.yaml"], {"model.init_args.optimizer.init_args.lr": 0.1, "federation.local.max_epochs": 2})],
        ),
    ],
)
def test_axes_as_they_are_written(over, choices):
    (axis,) = read_axes(over)
    assert [(choice.name, [*choice.files], dict(choice.settings)) for choice in axis.choices] == choices
    assert axis.name == next(iter(over))


def test_files_by_their_names():
    """A path wins over a name of the package; runs get paths."""
    (run,) = span(read_axes({"partition": ["data/shards.yaml"]}), [0], ["adafed_mnist", "skew"], {})
    assert run.setting == ("shards",)
    assert run.files == (str(ROOT / "configs/adafed_mnist.yaml"), "skew.yaml", str(ROOT / "configs/data/shards.yaml"))


@given(sizes=st.lists(st.integers(1, 3), max_size=3), seeds=st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True))
def test_every_combination_is_run_once(sizes, seeds):
    axes = [Axis(f"a{k}", tuple(Choice(f"c/{n} ", (), ((f"s{k}", n),)) for n in range(size))) for k, size in enumerate(sizes)]
    runs = span(axes, seeds, ["base.yaml"], {"common": 1, "s0": "below"})
    assert (
        len(runs)
        == len(seeds) * math.prod(sizes)
        == len({run.name for run in runs})
        == len({(run.setting, run.seed) for run in runs})
    )
    assert [run.seed for run in runs] == sorted((run.seed for run in runs), key=seeds.index)  # a seed at a time
    for run in runs:
        assert run.files == ("base.yaml",)
        assert dict(run.settings) == {"common": 1, "s0": "below"} | {f"s{k}": int(n[2]) for k, n in enumerate(run.setting)}
        assert "/" not in run.name
        assert len(run.name) <= 200


def test_names_that_would_be_the_same_folder():
    axes = read_axes({"algorithm": {"a/b": {"mu": 1}, "a b": {"mu": 2}}})
    names = [run.name for run in span(axes, [0], ["base.yaml"], {})]
    assert names == ["algorithm=a_b,seed=0", "algorithm=a_b,seed=0-1"]


def test_sections_become_full_names_and_classes_stay_whole():
    given_ = {"loss": "CrossEntropy", "trainer": {"max_epochs": 2, "logger": False}, "federation.strategy": ADAFED}
    assert full_names(given_) == [
        ("model.init_args.loss", "CrossEntropy"),
        ("trainer.max_epochs", 2),
        ("trainer.logger", False),
        ("federation.strategy", ADAFED),
    ]
