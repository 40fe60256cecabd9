"""The axes of a study, as a user writes them, and the runs that they span."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from command_line import ROOT
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning import ConfigurationError
from fl_lightning.studies.grid import Axis, Choice, full_names, read_axes, span
from fl_lightning.studies.panels import Measure
from fl_lightning.studies.sweep import write_sweep


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("base.yaml", "iid.yaml", "skew.yaml"):
        Path(name).write_text("{}\n")


ADAFED = {"class_path": "AdaFed", "init_args": {"power": 2}}


@pytest.mark.parametrize(
    ("written", "choices", "setting"),
    [
        (["FedAvg", ADAFED], [("FedAvg", "FedAvg"), ("AdaFed(power=2)", ADAFED)], "federation.strategy"),
        ("FedAvg, AdaFed", [("FedAvg", "FedAvg"), ("AdaFed", "AdaFed")], "federation.strategy"),
    ],
)
def test_values_of_a_setting(written, choices, setting):
    (axis,) = read_axes({"strategy": written})
    assert axis == Axis("strategy", tuple(Choice(name, (), ((setting, value),)) for name, value in choices), setting)


def test_numbers_of_a_setting_by_its_full_name():
    (axis,) = read_axes({"federation.local.proximal_mu": "0, 0.01,1e-3"})
    assert [(choice.name, choice.settings) for choice in axis.choices] == [
        (name, (("federation.local.proximal_mu", value),)) for name, value in (("0", 0), ("0.01", 0.01), ("0.001", 1e-3))
    ]


@pytest.mark.parametrize("written", ["iid.yaml,skew.yaml", ["iid.yaml", "skew.yaml"]])
def test_files_by_comma(written):
    (axis,) = read_axes({"partition": written})
    assert [choice.name for choice in axis.choices] == ["iid", "skew"]


def test_one_class_with_settings_is_one_choice():
    (axis,) = read_axes({"strategy": ADAFED})
    assert [choice.name for choice in axis.choices] == ["AdaFed(power=2)"]


def test_files_that_are_values_keep_their_names():
    (axis,) = read_axes({"data.root": ["./a.npz", "./b.npz", "x.y.Class"]})
    assert [choice.name for choice in axis.choices] == ["./a.npz", "./b.npz", "Class"]


def test_files_and_choices_by_name():
    listed, named = read_axes(
        {
            "partition": ["iid.yaml", "skew.yaml"],
            "algorithm": {
                "plain": None,
                "file": "skew.yaml",
                "both": ["iid.yaml", {"learning_rate": 0.1, "federation": {"local": {"max_epochs": 2}}}],
            },
        }
    )
    assert [(choice.name, choice.files) for choice in listed.choices] == [("iid", ("iid.yaml",)), ("skew", ("skew.yaml",))]
    assert listed.setting is None
    plain, file, both = named.choices
    assert plain == Choice("plain")
    assert file == Choice("file", ("skew.yaml",))
    assert both.files == ("iid.yaml",)
    assert both.settings == (("model.init_args.optimizer.init_args.lr", 0.1), ("federation.local.max_epochs", 2))


def test_a_name_for_a_value_of_one_setting():
    (axis,) = read_axes({"strategy": {"squared": ADAFED, "plain": "FedAvg"}})
    assert [choice.settings for choice in axis.choices] == [
        (("federation.strategy", ADAFED),),
        (("federation.strategy", "FedAvg"),),
    ]


def test_sections_become_full_names_and_classes_stay_whole():
    given_ = {"loss": "CrossEntropy", "trainer": {"max_epochs": 2, "logger": False}, "federation.strategy": ADAFED}
    assert full_names(given_) == [
        ("model.init_args.loss", "CrossEntropy"),
        ("trainer.max_epochs", 2),
        ("trainer.logger", False),
        ("federation.strategy", ADAFED),
    ]


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"strategy": []}, "'over.strategy' has no choices. Give at least one choice, each once, or name the choices"),
        ({"strategy": ["FedAvg", "FedAvg"]}, "'over.strategy' has 'FedAvg' more than once"),
        ({"seed": [1, 2]}, "'seed' is a column of every run table. Rename it."),
        ({"strategy": 3}, "'over.strategy' must be a list or names with settings, but is 3. An axis is a list"),
        ({"partition": ["iid.yaml", "FedAvg"]}, "'over.partition' mixes configuration files with 'FedAvg'"),
        ({"partition": {"a": {1: 2}}}, "'over.partition.a' must name settings"),
    ],
)
def test_axes_that_are_none(over, message):
    with pytest.raises(ConfigurationError, match=message):
        read_axes(over)


def test_files_by_their_names():
    """A path wins over a name of the package; runs get paths."""
    (run,) = span(read_axes({"partition": ["data/shards.yaml"]}), [0], ["adafed_mnist", "skew"], {})
    assert run.setting == ("shards",)
    assert run.files == (str(ROOT / "configs/adafed_mnist.yaml"), "skew.yaml", str(ROOT / "configs/data/shards.yaml"))


@pytest.mark.parametrize(("over", "base"), [({"partition": ["nowhere.yaml"]}, "base.yaml"), ({}, "nowhere.yaml")])
def test_files_that_are_not_there(over, base):
    with pytest.raises(ConfigurationError, match=r"There is no configuration .nowhere.yaml."):
        span(read_axes(over), [0], [base], {})


@given(sizes=st.lists(st.integers(1, 3), max_size=3), seeds=st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True))
def test_every_combination_is_run_once(sizes, seeds):
    axes = [Axis(f"a{k}", tuple(Choice(f"c/{n} ", (), ((f"s{k}", n),)) for n in range(size))) for k, size in enumerate(sizes)]
    runs = span(axes, seeds, ["base.yaml"], {"common": 1, "s0": "below"})
    expected = len(seeds)
    for size in sizes:
        expected *= size
    assert len(runs) == expected == len({run.name for run in runs}) == len({(run.setting, run.seed) for run in runs})
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


def test_a_sweep_has_the_study_s_runs():
    """Each run is a whole configuration; those of an earlier version of the study are gone."""
    Path("sweep").mkdir()
    Path("sweep/earlier.yaml").write_text("")
    path = write_sweep(Path(), "mine", {"a,seed=0": "name: a\n", "b,seed=0": "name: b\n"}, Measure("val_loss", higher=False))
    sweep = yaml.safe_load(path.read_text())
    assert [yaml.safe_load(Path(file).read_text())["name"] for file in sweep["parameters"]["config"]["values"]] == ["a", "b"]
    assert (sweep["name"], sweep["method"], sweep["metric"]) == ("mine", "grid", {"name": "val_loss", "goal": "minimize"})
    assert sweep["command"] == ["fl-lightning", "fit", "${args}"]
    assert len(list(Path("sweep").iterdir())) == 2
