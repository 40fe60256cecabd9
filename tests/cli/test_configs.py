"""Configurations by name, their bases, and what a user gets for a wrong one."""

from pathlib import Path

import pytest
import yaml
from command_line import ADAFED, ROOT, SMALL

from fl_lightning import ConfigurationError
from fl_lightning.cli.commands import configs
from fl_lightning.config.files import find, in_order, names, without
from fl_lightning.studies.settings import SettingsReader

TASK = {"model": {"class_path": "Model"}, "data": {"datamodule": "Data"}}
FILES = {
    "a": TASK,
    "b": {**TASK, "trainer": {"max_epochs": 2}},
    "on_a": {"base": "a"},
    "on_b": {"base": "b.yaml"},
    "layer": {"base": "on_a.yaml", "data": {"datamodule": {"batch_size": 3}}},
    "full_on_a": {"base": "a", **TASK},
    "on_full": {"base": "full_on_a"},
    "small": {"trainer": {"max_epochs": 1}},
    "on_small": {"base": "small"},
    "only_model": {"model": "Model"},
    "only_data": {"data": {"datamodule": {"class_path": "Data"}}},
    "on_both": {"base": ["small", "on_a"]},
}


@pytest.fixture
def files():
    for name, settings in FILES.items():
        Path(f"{name}.yaml").write_text(yaml.safe_dump(settings))


@pytest.fixture(scope="module")
def reader():
    return SettingsReader()


# ------------------------------------------------------------------ which files, in which order


def loaded(*given: str) -> list[Path]:
    """Return the files that the command line loads."""
    found: list[Path] = []
    for name in given:
        found += in_order(name, found)
    return found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a", "a"),
        ("on_a", "a on_a"),
        ("layer", "a on_a layer"),
        ("a on_a", "a on_a"),
        ("a small on_a", "a small on_a"),  # the base would undo 'small'
        ("on_a on_a", "a on_a on_a"),
        ("on_a layer", "a on_a layer"),
        ("a small layer", "a small on_a layer"),
        # another task is there: nothing of 'a' comes in between
        ("b on_a", "b on_a"),
        ("on_b on_a", "b on_b on_a"),
        ("only_model only_data on_a", "only_model only_data on_a"),
        ("b on_both", "b small on_a on_both"),
        # a complete file may have a base of its own
        ("full_on_a", "a full_on_a"),
        ("on_full", "a full_on_a on_full"),
        ("on_a full_on_a", "a on_a full_on_a"),
        # bases that are no task
        ("on_small", "small on_small"),
        ("a on_small", "a small on_small"),
    ],
)
def test_what_is_loaded(files, given, expected):
    assert [path.stem for path in loaded(*given.split())] == expected.split()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("small on_a", "'a.yaml', a base of 'on_a.yaml', would undo 'small.yaml'. Give 'on_a.yaml' first."),
        ("only_model on_a", "would undo 'only_model.yaml'"),
        ("on_both", "'a.yaml', a base of 'on_a.yaml', would undo 'small.yaml'. Give 'on_both.yaml' first."),
        ("on_a b", "'b' is a whole task, which would undo the settings before it. Give it first."),
    ],
)
def test_an_order_that_would_undo_settings_is_refused(files, given, message):
    with pytest.raises(ConfigurationError) as told:
        loaded(*given.split())
    assert message in str(told.value)


def test_a_base_is_relative_to_its_file_and_else_a_name_of_the_package(tmp_path):
    (tmp_path / "deep").mkdir()
    Path("mine.yaml").write_text("trainer: {max_epochs: 1}")
    Path("deep/on_mine.yaml").write_text("base: ../mine.yaml")
    Path("deep/on_ours.yaml").write_text("base: data/label_skew.yaml")
    own = [path.resolve() for path in loaded("deep/on_mine.yaml")]
    assert own == [tmp_path / "mine.yaml", tmp_path / "deep" / "on_mine.yaml"]
    assert loaded("deep/on_ours.yaml") == [Path(ADAFED), ROOT / "configs/data/label_skew.yaml", Path("deep/on_ours.yaml")]


def test_a_path_wins_over_a_name():
    assert find("adafed_mnist") == find("adafed_mnist.yaml") == Path(ADAFED)
    assert find("data/iid") == ROOT / "configs/data/iid.yaml"
    assert find("fednova_mnist", group="studies") == ROOT / "configs/studies/fednova_mnist.yaml"
    Path("adafed_mnist.yaml").write_text("trainer: {}")
    Path("data").mkdir()
    Path("data/iid").write_text("trainer: {}")
    assert find("adafed_mnist") == find("adafed_mnist.yaml") == Path("adafed_mnist.yaml")
    assert find("data/iid") == Path("data/iid")
    assert find("data/iid.yaml") == ROOT / "configs/data/iid.yaml"


def test_every_way_to_give_a_configuration(reader, monkeypatch, capsys):
    Path("on.yaml").write_text("base: fednova_mnist\ntrainer: {max_epochs: 7}\n")
    for given in (["--config", "on"], ["--config=on"], ["-c", "on.yaml"], ["-con"]):
        parsed = reader.parser.parse_args(["fit", "--config={trainer: {max_time: '1'}}", *given, "--trainer.min_epochs=2"]).fit
        assert parsed.federation.strategy.class_path == "fl_lightning.FedNova"
        assert (parsed.trainer.max_epochs, parsed.trainer.min_epochs, parsed.trainer.max_time) == (7, 2, "1")
        assert parsed.config[1:] == [Path(ADAFED), ROOT / "configs/fednova_mnist.yaml", Path("on.yaml")]
    Path("sections.yaml").write_text("fit: {trainer: {max_epochs: 1}}")
    parsed = reader.parser.parse_args(["--config=sections.yaml", "fit", "-c", "fedavg_mnist"])
    assert parsed.fit.federation.strategy.class_path == "fl_lightning.FedAvg"
    with pytest.raises(ConfigurationError, match=r"Give '--config on' after the command: fl-lightning fit --config on"):
        reader.parser.parse_args(["--config", "on", "fit"])


@pytest.mark.parametrize(
    "text",
    [
        "# ä comment with ü\nbase: x\ntrainer:\n  max_epochs: 1e-3\n",
        "trainer: {a: 2020-01-01}\nbase: [x, y]\nmodel: Ünïcode\n",
        "{trainer: {base: 1}, base: x, model: y}",
        "trainer: {base: 1}",
    ],
)
@pytest.mark.parametrize("cut", [{"base"}, {"base", "model"}, {"trainer", "base"}])
def test_settings_are_cut_out_of_a_text(text, cut):
    expected = {key: value for key, value in yaml.safe_load(text).items() if key not in cut}
    assert yaml.safe_load(without(text, cut)) == expected


# ------------------------------------------------------------------ the configurations of the package


@pytest.mark.slow
def test_a_run_s_settings_are_flat_and_are_read_back(fl):
    quick = [*SMALL, "--trainer.max_epochs=1", "--trainer.logger=false"]
    status, text = fl("fit", "--config", "fedavg_mnist", "-c", "speed/fabric", *quick)
    assert status == 0, text
    config = Path("runs/fedavg_mnist/config.yaml")
    written = yaml.safe_load(config.read_text())
    assert not {"base", "config"} & written.keys()
    assert written["model"]["class_path"] == "fl_lightning.ClassificationTask"
    assert written["federation"]["strategy"]["class_path"] == "fl_lightning.FedAvg"
    assert written["federation"]["local"]["engine"] == "fabric"
    status, text = fl("test", "--config", str(config), "--trainer.limit_test_batches=1")
    assert (status, "test_accuracy" in text) == (0, True), text


def test_configs_are_listed_shown_and_copied(capsys):
    configs.main([])
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in names())
    assert "FedNova (Wang et al. 2020) with momentum" in listed
    configs.main(["show", "data/iid"])
    assert capsys.readouterr().out == (ROOT / "configs/data/iid.yaml").read_text()
    configs.main(["copy", "fednova_mnist"])
    assert capsys.readouterr().out.endswith("Use it: fl-lightning fit --config fednova_mnist.yaml\n")
    assert Path("fednova_mnist.yaml").read_text() == (ROOT / "configs/fednova_mnist.yaml").read_text()
    assert loaded("fednova_mnist") == [Path(ADAFED), Path("fednova_mnist.yaml")]
    configs.main(["copy", "studies/mocha", "mine.yaml"])
    assert "Use it: fl-lightning compare --config mine.yaml" in capsys.readouterr().out
    configs.main(["--help"])
    assert "configs copy NAME [TO]" in capsys.readouterr().out
