"""What a user gets for a wrong configuration, and for a wrong name in one."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import ROOT

from fl_lightning import ConfigurationError
from fl_lightning.config.files import in_order
from fl_lightning.errors import did_you_mean
from fl_lightning.studies.commands import main as compare
from fl_lightning.studies.settings import SettingsReader


@pytest.fixture(scope="module")
def reader():
    return SettingsReader()


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
    "report.yaml": "client_table: {enabled: false}\n",
    "clients.yaml": "data:\n  clients:\n    oslo: MNISTDataModule\n    bergen: {class_path: MNISTDataModule,"
    " init_args: {batch_size: x}}\n    turku: MNISTDataModul\n",
    "former.yaml": "federation:\n  clock: {ticks: 3}\n",
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
        ("octal.yaml", "'octal.yaml', line 2: YAML reads 010 as the number 8. Put quotes around it, or write"),
        ("clock.yaml", "'clock.yaml', line 3: YAML reads 12:30 as the number 750. Put quotes around it,"),
        ("one", "form a circle: one.yaml -> two.yaml -> three.yaml -> one.yaml. Remove one."),
        ("self", "form a circle: self.yaml -> self.yaml"),
        ("number.yaml", "'number.yaml': 'base' must name a configuration file, or a list of them, but is 3"),
        ("mapping.yaml", "'mapping.yaml': 'base' must name"),
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
        in_order(given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.slow
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
def test_the_configuration_of_one_run_is_no_study(given, capsys):
    with pytest.raises(SystemExit):
        compare(["compare", "--config", given])
    said = capsys.readouterr().err
    assert f"'{given}' configures one run, not a study. Run it with: fl-lightning fit --config {given}; or" in said
    assert f"fl-lightning compare --base {given} --over" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--config key.yaml", "Subcommand 'fit' does not accept option 'federation.stratgy'. Did"),
        ("--config section.yaml", "Did you mean --federation.strategy?"),
        ("--config setting.yaml", "Option 'powr' is not accepted. "),
        ("--config setting.yaml", "Did you mean power?"),
        ("--config class.yaml", "Did you mean CrossEntropy?"),
        ("--config former.yaml", "It is now 'federation.availability.clock'."),
        ("--federation.resume_changed true", "It is now 'federation.checkpoints.resume_changed'."),
        ("--partition_report.enabled false", "Write 'federation_report', where 'enabled' is 'partition'."),
        ("--config clients.yaml", "error: 'data.clients.bergen.batch_size' must be a whole number, but is 'x'."),
        ('--data.clients {"oslo":"MNISTDataModule","turku":"MNISTDataModul"}', "'data.clients.turku': There is no class"),
        ('--data.clients {"oslo":"MNISTDataModule","turku":{"root":"x"}}', "'data.clients.turku' has settings, but no class."),
        ("--data.clients.oslo MNISTDataModule --data.clients.oslo.batch_size=x", "error: 'data.clients.oslo.batch_size' must"),
        ("--config report.yaml", "Write 'federation_report', where 'enabled' is 'clients'."),
        ("--config item.yaml", "Did you mean Quantize? Known: ClientPrivacy, ClipUpdate, HalfPrecision, Quantize, TopK;"),
        ("--config value.yaml", "'trainer.max_epochs' must be a whole number, but is 'x'."),
        ("--config {base:adafed_mnist,trainer:{max_epochs:[}}", "config"),
        ("--config={'base':'x'}", "does not accept option 'base'"),
        (
            "--trainer.max_epochs x",
            "error: 'trainer.max_epochs' must be a whole number, but is 'x'. All settings: fl-lightning fit --help.",
        ),
        (
            "--federation.pool.folder fed",
            "has settings, but no class. Write 'federation.pool: {class_path: ..., init_args: ...}', with",
        ),
        (
            "--federation.strategy fl_lightning.strategies.base.WeightedAverage",
            "WeightedAverage, which does not define 'weight'. Add it",
        ),
        (
            "--federation.route.period 3",
            "has settings, but no class. Write 'federation.route: {class_path: ..., init_args: ...}', with",
        ),
        ("--federation.strategy FedAvgg", "Did you mean FedAvg, FedAvgM or QFedAvg? Known: AFL, APFL, AdaFed"),
        ("--data.partitioner.num_client 2 --data.partitioner IIDPartitioner", "num_client"),
        ("--data.rebalancing LabelAverage", "Did you mean LabelAveraging?"),
        ("--model ClasificationTask", "Did you mean ClassificationTask? Known"),
        ("--model.network.imag_size 3", "Did you mean image_size?"),
        (
            "--model.network fl_lightnin.LeNet",
            "No module named 'fl_lightnin'. A class of your own is named by its dotted path, from this folder or PYTHONPATH.",
        ),
        ("--model.network torch.nn.Sequentiall", "Did you mean torch.nn.Sequential?"),
        ("--model.optimizer SDG", "Did you mean torch.optim.SGD?"),
        ("--model.optimizer torch.optm.SGD", "Did you mean torch.optim?"),
        ("--federation.server_optimizer torch.optim.Adm", "Did you mean torch.optim.Adam?"),
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "model: {hidden: 32}",
            "'model' has settings, but no class. Write 'model: {class_path: ..., init_args: ...}', with a class such as Classi",
        ),
        ("model: {init_args: {hidden: 32}}", "Write 'model: {class_path: ..., init_args: ...}'"),
        (
            "model: {class_path: ClassificationTask, init_args: {network: {hidden: [3]}}}",
            "Write 'model.network: {class_path: ..., init",
        ),
        ("data: {datamodule: {path: x.csv}}", "Write 'data.datamodule: {class_path: ..., init_args: ...}'"),
        ("data: {batch_size: 32}", f"Subcommand 'fit' does not accept option 'data.batch_size'. {DATA}"),
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
        (["fitt"], "invalid choice: 'fitt' (choose from "),
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
