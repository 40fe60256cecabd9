"""Configurations by name, their bases, and what a user gets for a wrong one."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from command_line import ADAFED, OTHER_TASKS, ROOT, SMALL

from fl_lightning import ConfigurationError
from fl_lightning.cli.commands import configs
from fl_lightning.config.arguments import behind_subcommand, expand, name_files
from fl_lightning.config.files import arrange, find, folder, names, read, without
from fl_lightning.errors import did_you_mean
from fl_lightning.studies.grid import Run
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


@pytest.mark.parametrize(
    ("given", "loaded"),
    [
        ("a", "a"),
        ("on_a", "a on_a"),
        ("layer", "a on_a layer"),
        ("a on_a", "a on_a"),
        ("a small on_a", "a small on_a"),  # the base would undo 'small'
        ("on_a a", "on_a a"),  # as it was typed
        ("on_a on_a", "a on_a on_a"),
        ("on_a layer", "a on_a layer"),
        ("a layer", "a on_a layer"),
        ("a small layer", "a small on_a layer"),
        # another task is there: nothing of 'a' comes in between
        ("b on_a", "b on_a"),
        ("on_a b", "on_a b"),
        ("on_b on_a", "b on_b on_a"),
        ("b layer", "b on_a layer"),
        ("only_model only_data on_a", "only_model only_data on_a"),
        ("on_a only_data only_model", "on_a only_data only_model"),
        # half a task is none, and a base lies below what was given before
        ("small on_a", "a small on_a"),
        ("only_model on_a", "a only_model on_a"),
        ("small on_a on_b", "a small on_a on_b"),
        # a complete file may have a base of its own
        ("full_on_a", "a full_on_a"),
        ("on_full", "a full_on_a on_full"),
        ("a on_full", "a full_on_a on_full"),
        ("on_a full_on_a", "a on_a full_on_a"),
        # bases that are no task, and several
        ("on_small", "small on_small"),
        ("a on_small", "a small on_small"),
        ("on_both", "a small on_a on_both"),
        ("a on_both", "a small on_a on_both"),
    ],
)
def test_what_is_loaded(files, given, loaded):
    below, placed = arrange([Path(f"{name}.yaml") for name in given.split()])
    assert [path.stem for path in (*below, *(path for own in placed for path in own))] == loaded.split()


def test_a_base_is_relative_to_its_file_and_else_a_name_of_the_package(tmp_path):
    (tmp_path / "deep").mkdir()
    Path("mine.yaml").write_text("trainer: {max_epochs: 1}")
    Path("deep/on_mine.yaml").write_text("base: ../mine.yaml")
    Path("deep/on_ours.yaml").write_text("base: data/label_skew.yaml")
    (_, (own,)) = arrange([Path("deep/on_mine.yaml")])
    assert [path.resolve() for path in own] == [tmp_path / "mine.yaml", tmp_path / "deep" / "on_mine.yaml"]
    below, (own,) = arrange([Path("deep/on_ours.yaml")])
    assert [*below, *own] == [Path(ADAFED), ROOT / "configs/data/label_skew.yaml", Path("deep/on_ours.yaml")]


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


def test_every_way_to_give_a_configuration(files):
    expected = ["--seed=1", "--config=a.yaml", "--config=on_a.yaml", "--trainer.max_epochs", "3"]
    for given in (["--config", "on_a"], ["--config=on_a"], ["-c", "on_a"], ["-con_a"], ["-c=on_a"]):
        assert expand(["--seed=1", *given, *expected[-2:]]) == expected
        assert behind_subcommand([*given, "fit", "--x", "1"], ["fit"]) == ["fit", "--config=on_a.yaml", "--x", "1"]
    assert expand(["--x", "--config"]) == ["--x", "--config"]  # the parser says what is missing
    untouched = ["--config", "{trainer: {max_epochs: 3}}", "--config=https://a.b/c.yaml", "--config", "/dev/null"]
    assert expand(untouched) == untouched
    assert expand(["--config", "{a: 1}", "--config", "on_a"]) == ["--config=a.yaml", "--config", "{a: 1}", "--config=on_a.yaml"]
    assert name_files(["--config", "mocha"]) == [f"--config={ROOT}/configs/studies/mocha.yaml"]
    Path("sections.yaml").write_text("fit: {trainer: {max_epochs: 1}}")
    nested = ["--config=sections.yaml", "fit", "--config=a.yaml"]
    assert behind_subcommand(["-c", "sections.yaml", "-c", "a", "fit"], ["fit", "test"]) == nested
    assert behind_subcommand(["--print_config", "fit", "-c", "a"], ["fit"]) == ["--print_config", "fit", "-c", "a"]


@pytest.mark.parametrize(
    "text",
    [
        "# ä comment with ü\nbase: x\ntrainer:\n  max_epochs: 1e-3\n",
        "trainer: {a: 2020-01-01}\nbase: [x, y]\nmodel: Ünïcode\n",
        "trainer:\n  a: 'é'\nbase:\n  - x\n  - y\n",
        "{trainer: {base: 1}, base: x, model: y}",
        "{base: x, model: y}",
        "{model: y, base: x}",
        "base: x",
        "model: y",
        "trainer: {base: 1}",
    ],
)
@pytest.mark.parametrize("cut", [{"base"}, {"base", "model"}, {"trainer", "base"}])
def test_settings_are_cut_out_of_a_text(text, cut):
    expected = {key: value for key, value in yaml.safe_load(text).items() if key not in cut}
    assert yaml.safe_load(without(text, cut)) == expected


# ------------------------------------------------------------------ the configurations of the package

SINGLE = [name for name in names() if not name.startswith("studies/")]


def test_the_repository_is_read():
    assert folder() == ROOT / "configs"
    assert len(SINGLE) > 70
    assert {name for name in names() if name.startswith("studies/")} >= {"studies/mocha", "studies/fednova_mnist"}


def below(name: str) -> str:
    tables = {"data/cells": "cell_counting", "data/table": "network_mse_simulated", "cell_counting_robust": "cell_counting"}
    return tables.get(name, "adafed_mnist")


@pytest.mark.parametrize("name", SINGLE)
def test_every_config_is_complete_or_has_a_base_that_is(name):
    """They are fitted alone in test_fitted_configs.py and test_other_tasks.py."""
    path = folder() / f"{name}.yaml"
    settings = yaml.safe_load(path.read_text())
    is_complete = "class_path" in settings.get("model", {}) and "datamodule" in settings["data"]
    assert is_complete is ("base" not in settings)
    bases = [] if is_complete else [folder() / f"{below(name)}.yaml"]
    assert expand(["--config", name]) == [f"--config={file}" for file in (*bases, path)]
    # on top of another task, and of its own base by hand, it is what it was without a base
    for first in ("resnet18_cifar10", "kmeans_simulated", below(name)):
        assert expand(["--config", first, "--config", name])[-2:] == [f"--config={folder() / first}.yaml", f"--config={path}"]


@pytest.mark.parametrize("name", ["fednova_mnist", "data/label_skew", "cell_counting_robust"])
def test_the_base_is_no_setting(name, reader):
    """Oracle: the same text without its line 'base', on top of the base."""
    without = f"without_{Path(name).name}.yaml"  # the reader parses the same files once
    Path(without).write_text((folder() / f"{name}.yaml").read_text().replace(f"base: {below(name)}\n", "", 1))
    expected = reader.text(reader.read(Run((), 0, name, (below(name), without), ())))
    assert reader.text(reader.read(Run((), 0, name, (name,), ()))) == expected
    assert "base" not in yaml.safe_load(expected)


def test_a_run_s_settings_are_flat_and_are_read_back(fl):
    quick = [*SMALL, "--trainer.max_epochs=1", "--trainer.logger=false"]
    status, text = fl("--config", "fedavg_mnist", "fit", "-c", "speed/fabric", *quick)
    assert status == 0, text
    config = Path("runs/fedavg_mnist/config.yaml")
    written = yaml.safe_load(config.read_text())
    assert not {"base", "config"} & written.keys()
    assert written["model"]["class_path"] == "fl_lightning.ClassificationTask"
    assert written["federation"]["strategy"]["class_path"] == "fl_lightning.FedAvg"
    assert written["federation"]["local"]["engine"] == "fabric"
    status, text = fl("test", "--config", str(config), "--trainer.limit_test_batches=1")
    assert status == 0, text
    assert "test_accuracy" in text


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
    assert expand(["--config", "fednova_mnist"]) == [f"--config={ADAFED}", "--config=fednova_mnist.yaml"]
    configs.main(["copy", "studies/mocha", "mine.yaml"])
    assert "Use it: fl-lightning compare --config mine.yaml" in capsys.readouterr().out
    configs.main(["--help"])
    assert "configs copy NAME [TO]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["show", "fednov"], 1, "There is no configuration 'fednov'"),
        (["copy", "iid"], 1, "Did you mean data/iid?"),
        (["copy", "data/iid", "there.yaml"], 1, "'there.yaml' already exists and was not changed. Name another file."),
        (["copy", "data/iid", "no/folder.yaml"], 1, "Cannot write 'no/folder.yaml'"),
        (["sho"], 2, "'configs' has no action 'sho'. Did you mean show?"),
        (["fednova"], 2, "Did you mean show fednova_mnist"),
        (["show"], 2, "'configs show' got 0 arguments"),
        (["list", "x"], 2, "'configs list' got 1 arguments"),
    ],
)
def test_configs_with_wrong_arguments(arguments, status, message, capsys):
    Path("there.yaml").write_text("mine")
    with pytest.raises(SystemExit) as end:
        configs.main(arguments)
    assert end.value.code == status
    text = capsys.readouterr().err
    assert text.startswith("fl-lightning: error: ")
    assert message in text
    assert Path("there.yaml").read_text() == "mine"


# ------------------------------------------------------------------ as a user installs it


def python(code: str, path: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(path)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=120).stdout


def test_a_wheel_from_the_sdist_has_the_configs(tmp_path):
    """Unpacked in a folder of its own, and run from another."""
    sdist = pytest.importorskip("hatchling.builders.sdist", reason="pip install hatchling").SdistBuilder
    wheel = pytest.importorskip("hatchling.builders.wheel").WheelBuilder
    (packed,) = sdist(str(ROOT)).build(directory=str(tmp_path / "dist"), versions=["standard"])
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    (built,) = wheel(str(source)).build(directory=str(tmp_path / "dist"), versions=["standard"])
    with zipfile.ZipFile(built) as archive:
        archive.extractall(tmp_path / "site")
    assert sorted((tmp_path / "site" / "fl_lightning" / "configs").rglob("*.py")) == []
    code = "import fl_lightning.config.files as c; print(c.folder(), *c.names(), sep='\\n')"
    found, *known = python(code, tmp_path / "site").splitlines()
    assert found == str(tmp_path / "site" / "fl_lightning" / "configs")
    assert known == names()
    code = "from fl_lightning.cli.command import main; main()"
    printed = python(code, tmp_path / "site", "fit", "--config", "fednova_mnist", "--print_config")
    assert yaml.safe_load(printed)["federation"]["strategy"]["class_path"] == "fl_lightning.FedNova"


# ------------------------------------------------------------------ what is wrong


WRONG_FILES = {
    "broken.yaml": "trainer:\n  max_epochs: [1\nmodel: x\n",
    "tab.yaml": "trainer:\n\tmax_epochs: 1\n",
    "empty.yaml": "# nothing yet\n",
    "list.yaml": "- 1\n- 2\n",
    "twice.yaml": "trainer:\n  max_epochs: 1\nmodel: x\ntrainer:\n  logger: false\n",
    "octal.yaml": "data:\n  held_out_clients: [a, 010]\n",
    "clock.yaml": "data:\n  clients:\n    12:30: {}\n",
    "one.yaml": "base: two.yaml\n",
    "two.yaml": "base: [three]\n",
    "three.yaml": "base: one\n",
    "self.yaml": "base: self\n",
    "number.yaml": "trainer: {}\nbase: 3\n",
    "mapping.yaml": "base: {a: b}\n",
    "missing.yaml": "base: adafed_mnst\n",
    "both.yaml": "base: adafed_mnist\nfit: {trainer: {}}\n",
    "key.yaml": "trainer: {}\nfederation:\n  stratgy: FedAvg\n",
    "section.yaml": "fedration:\n  strategy: FedAvg\n",
    "setting.yaml": "federation:\n  strategy:\n    class_path: AdaFed\n    init_args: {examples: true,\n      powr: 2}\n",
    "class.yaml": "model:\n  init_args:\n    loss: {class_path: CrossEntropi}\n",
    "item.yaml": "federation:\n  transforms:\n    - Quantise\n",
    "value.yaml": "trainer:\n  max_epochs: x\n",
}


@pytest.fixture
def wrong():
    for name, text in WRONG_FILES.items():
        Path(name).write_text(text)
    Path("latin.yaml").write_bytes("trainer: {default_root_dir: München}".encode("latin-1"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("broken.yaml", "'broken.yaml', line 3, column 6 is not valid YAML: did not find expected ',' or ']'"),
        ("tab.yaml", "'tab.yaml', line 2, column 1 is not valid YAML: found character that cannot start any token"),
        ("latin.yaml", "Cannot read the configuration 'latin.yaml'"),
        ("empty.yaml", "The configuration 'empty.yaml' is empty. Write settings such as"),
        ("list.yaml", "The configuration 'list.yaml' has no settings with names"),
        ("twice.yaml", "'twice.yaml', line 4: 'trainer' occurs twice, first in line 1"),
        ("octal.yaml", "'octal.yaml', line 2: YAML reads 010 as the number 8. Put quotes around it, or write 8."),
        ("clock.yaml", "'clock.yaml', line 3: YAML reads 12:30 as the number 750. Put quotes around it."),
        ("one", "form a circle: one.yaml -> two.yaml -> three.yaml -> one.yaml. Remove one."),
        ("self", "form a circle: self.yaml -> self.yaml"),
        ("number.yaml", "'number.yaml', line 2: 'base' must name a configuration file, or a list of them"),
        ("mapping.yaml", "'mapping.yaml', line 1: 'base' must name"),
        ("missing.yaml", "There is no configuration 'adafed_mnst': no file"),
        ("adafed_mnst", "Did you mean adafed_mnist? List those of the package: fl-lightning configs."),
        ("brokn.yaml", "Did you mean broken.yaml?"),
        ("label_skew", "Did you mean data/label_skew?"),
        ("configs/fednova_mnist.yaml", "Did you mean fednova_mnist?"),
        ("..", "'..' is a folder"),
        ("studies/mocha", "is a study of many runs. Run it with: fl-lightning compare --config studies/mocha"),
    ],
)
def test_a_wrong_file_ends_in_one_message(given, message, wrong):
    with pytest.raises(ConfigurationError) as error:
        expand(["--config", given])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{oslo: a.csv, oslo: b.csv}", "line 1: 'oslo' occurs twice, first in line 1. Merge both"),
        ('{"oslo": "a.csv", "oslo": "b.csv"}', "line 1: 'oslo' occurs twice"),
        ("{010: a.csv, 8: b.csv}", "line 1: YAML reads 010 as the number 8. Put quotes around it"),
        ("{8: a.csv}", "'data.datamodule.path' has the name 8, which is not text. Put quotes around it"),
    ],
)
def test_names_of_clients_on_the_command_line(given, message, fl):
    table = ("--config", f"{ROOT}/configs/data/table.yaml", "--data.datamodule.client_column", "null")
    status, text = fl("partition", *table, "--data.datamodule.path", given)
    assert status == 1
    assert message in text


@pytest.mark.parametrize("given", ["adafed_mnist", "fedavg_mnist", f"{ROOT}/configs/fedloss_cifar10.yaml"])
def test_the_configuration_of_one_run_is_no_study(given):
    said = (
        rf"'{given}' configures one run, .* fit --config {given}; or compare settings of it: .* compare --base {given} --over"
    )
    with pytest.raises(ConfigurationError, match=said):
        name_files(["--config", given])


def test_sections_of_subcommands_have_no_base(wrong):
    with pytest.raises(ConfigurationError, match=r"'both\.yaml' has both a section 'fit' and 'base'"):
        behind_subcommand(["--config=both.yaml", "fit"], ["fit"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--config key.yaml", "'key.yaml', line 3: Subcommand 'fit' does not accept option 'federation.stratgy'. Did"),
        ("--config section.yaml", "'section.yaml', line 2: "),
        ("--config section.yaml", "Did you mean --federation.strategy?"),
        ("--config setting.yaml", "'setting.yaml', line 5: "),
        ("--config setting.yaml", "Option 'powr' is not accepted. "),
        ("--config setting.yaml", "Did you mean power?"),
        ("--config class.yaml", "'class.yaml', line 3: "),
        ("--config class.yaml", "Did you mean CrossEntropy?"),
        ("--config item.yaml", "'item.yaml', line 3: "),
        ("--config item.yaml", "Did you mean Quantize? Known: ClientPrivacy, ClipUpdate, HalfPrecision, Quantize, TopK;"),
        ("--config value.yaml", "'value.yaml', line 2: "),
        ("--config value.yaml", "'trainer.max_epochs' must be a whole number, but is 'x'."),
        ("--config value.yaml --trainer.max_epochs y", "error: 'value.yaml', line 2: "),
        ("--config {base:adafed_mnist,trainer:{max_epochs:[}}", "config"),
        ("--config={'base':'x'}", "does not accept option 'base'"),
        (
            "--trainer.max_epochs x",
            "error: 'trainer.max_epochs' must be a whole number, but is 'x'. All settings: fl-lightning fit --help.",
        ),
        ("--federation.pool.folder fed", "has settings, but no class. Set it first, for example --federation.pool Fl"),
        (
            "--federation.strategy fl_lightning.strategies.base.WeightedAverage",
            "WeightedAverage does not define 'weight'. Add it",
        ),
        ("--federation.route.period 3", "has settings, but no class. Set it first, for example --federation.route"),
        ("--federation.strategy FedAvgg", "Did you mean FedAvg, FedAvgM or QFedAvg? Known: AFL, APFL, AdaFed"),
        ("--federation.route RingFedd", "Did you mean RingFed? Known"),
        ("--data.partitioner IIDPartitoner", "Did you mean IIDPartitioner? Known"),
        ("--data.partitioner.num_client 2 --data.partitioner IIDPartitioner", "num_client"),
        ("--data.datamodule MNISTDataModul", "Did you mean MNISTDataModule? Known"),
        ("--data.rebalancing LabelAverage", "Did you mean LabelAveraging?"),
        ("--model ClasificationTask", "Did you mean ClassificationTask? Known"),
        ("--model.num_clases 3", "Did you mean num_classes?"),
        ("--model.network LeNett", "Did you mean LeNet?"),
        ("--model.network.imag_size 3", "Did you mean image_size?"),
        ("--model.network fl_lightnin.LeNet", "Did you mean fl_lightning? A module of your own must be in this folder or on"),
        ("--model.network torch.nn.Sequentiall", "Did you mean torch.nn.Sequential?"),
        ("--model.optimizer SDG", "Did you mean torch.optim.SGD?"),
        ("--model.optimizer torch.optim.SDG", "Did you mean torch.optim.SGD?"),
        ("--model.optimizer torch.optm.SGD", "Did you mean torch.optim?"),
        ("--federation.server_optimizer torch.optim.Adm", "Did you mean torch.optim.Adam?"),
        ("--federation.attackers.model SignFlipp", "Did you mean SignFlip?"),
        ("--trainer.callbacks PredictionImage", "Did you mean PredictionImages?"),
        ("--trainer.logger CSVLoger", "Did you mean lightning.pytorch.loggers.CSVLogger"),
        ("--federation.local.max_epoch=3 --federation.locl.max_epochs 3", "Did you mean --federation.local.max_epochs?"),
    ],
)
def test_a_wrong_name_gets_the_nearest(arguments, message, wrong, reader, capsys):
    with pytest.raises(SystemExit) as end:
        reader._parser.parse_args(["fit", "--config", "adafed_mnist", *arguments.split()])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


DATA = "Write 'data: {datamodule: {class_path: ..., init_args: ...}, partitioner: ...}'."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model: {hidden: 32}",
            "line 1: 'model' has settings, but no class. Write 'model: {class_path: ..., init_args: ...}'.",
        ),
        ("model: {init_args: {hidden: 32}}", "Write 'model: {class_path: ..., init_args: ...}'."),
        (
            "model: {class_path: ClassificationTask, init_args: {network: {hidden: [3]}}}",
            "Write 'network: {class_path: ..., init",
        ),
        ("data: {datamodule: {path: x.csv}}", "Write 'data.datamodule: {class_path: ..., init_args: ...}'."),
        ("data: {batch_size: 32}", f"line 1: Subcommand 'fit' does not accept option 'data.batch_size'. {DATA}"),
        ("data: {class_path: TableDataModule}", f"does not accept option 'data.class_path'. {DATA}"),
        (
            "data: {class_path: TableDataModule, init_args: {path: x.csv}}",
            f"does not accept option 'data.init_args.path'. {DATA}",
        ),
        ("data: {partitoner: IIDPartitioner}", "Did you mean --data.partitioner?"),
    ],
)
def test_the_sections_of_a_lightning_cli_say_what_to_write(text, message, reader, capsys):
    """There, 'model' and 'data' have one class, which the file does not name."""
    Path("own.yaml").write_text(f"{text}\n")
    with pytest.raises(SystemExit):
        reader._parser.parse_args(["fit", "--config", "own.yaml"])
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "adafed_mnist", "fitt"], "Did you mean fit?"),
        (["--config", "adafed_mnist"], "Add it: fl-lightning fit ..."),
        (["fit"], "Use a configuration that sets them: fl-lightning fit --config adafed_mnist"),
    ],
)
def test_a_wrong_subcommand_or_none(arguments, message, reader, capsys):
    with pytest.raises(SystemExit) as end:
        reader._parser.parse_args(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_names_that_are_near():
    assert did_you_mean("fedavgg", ["FedAvg", "FedAvgM", "AdaFed"]) == " Did you mean FedAvg or FedAvgM?"
    assert did_you_mean("x", ["FedAvg"]) == ""
    assert did_you_mean("x", []) == ""


def test_the_other_tasks_are_of_the_package():
    assert {name for files, _ in OTHER_TASKS.values() for name in files} <= set(names())
    assert read(find("adafed_mnist")).is_complete
