"""The first help page of each command that trains or evaluates: what a user sets first. Does not import torch."""

from __future__ import annotations

SECTIONS = {
    "trainer": "Lightning's Trainer; one epoch is one round",
    "model": "your module, or ClassificationTask, RegressionTask, KMeansTask",
    "data": "the datamodule, how its data are divided, what clients and server evaluate on",
    "federation": "strategy, route, cohorts, and everything else about rounds",
    "federation.local": "how a client trains",
    "federation.attackers": "clients that misbehave",
    "federation.faults": "what happens when a client fails",
    "federation.availability": "clients that drop out, are slow, or come and go, and simulated time",
    "federation.storage": "limits of memory and of files",
    "federation.checkpoints": "trusted classes of checkpoints, and changed settings of a resumed run",
    "federation.client_evaluation": "what is measured on the clients' own data",
    "federation.server_evaluation": "limits on the cost of measuring clients' models",
    "federation_report": "the tables of each client's data, of what clients did and of failures",
    "feature_cache": "stored outputs of frozen layers",
    "best_checkpoint": "how the best round is chosen",
    "last_checkpoint": "where the last round is saved",
}
"""Sections of the settings and what they are about."""

_RUN = (
    ("--config FILE", "A YAML file; several may be given, and later ones override earlier ones."),
    ("--trainer.default_root_dir DIR", "Folder of the run: checkpoints, logs, config.yaml. Use one folder per run."),
)
_CHOICES = (
    ("--data.datamodule CLASS", "The data: MNISTDataModule, ImageFolderDataModule, TableDataModule, your own."),
    ("--data.partitioner CLASS", "How to divide them: IIDPartitioner, DirichletPartitioner, ShardPartitioner, your own."),
)
_SEED = ("--seed_everything N", "Seed of the initial weights and of the module's random numbers.")
_FIT = (
    *_RUN,
    ("--trainer.max_epochs N", "Rounds: one epoch of the Trainer is one communication round."),
    ("--trainer.logger false", "Disable loggers. The default is CSV files and W&B, which is offline without an API key."),
    ("--ckpt_path last", "Resume the run in its folder, even after a kill mid-round."),
    ("--model CLASS", "The module: ClassificationTask, RegressionTask, or any LightningModule."),
    ("--model.network CLASS", "Network of these tasks: KerasCNN, LeNet, MLP, ResNet18, your own."),
    ("--model.loss CLASS", "Loss: CrossEntropy, F1WeightedCrossEntropy, torch.nn.CrossEntropyLoss, your own."),
    ("--model.optimizer CLASS", "The clients' optimizer, e.g. torch.optim.SGD; set its rate with --model.optimizer.lr 0.1."),
    *_CHOICES,
    ("--federation.strategy CLASS", "How the server combines updates: FedAvg, AdaFed, FedMedian, Scaffold, your own."),
    ("--federation.clients_per_round X", "Clients per round: a number such as 10, or a fraction such as 0.5."),
    ("--federation.local.max_epochs N", "Epochs of a client in each round."),
    ("--federation.enabled false", "Train centrally on the union of the clients' data, as a baseline."),
    _SEED,
)
_EVALUATE = (
    *_RUN,
    ("--ckpt_path FILE", "A checkpoint other than the run's best one."),
    ("--data.datamodule CLASS", "Data other than the run's."),
    ("--trainer.accelerator NAME", "cpu, gpu, or auto."),
)
_PAGES = {
    "fit": ("Train a federation: one epoch is one communication round.", _FIT, "configs/adafed_mnist.yaml"),
    "validate": ("Evaluate a checkpoint on the server's validation set.", _EVALUATE, "runs/adafed_mnist/config.yaml"),
    "test": ("Evaluate a checkpoint on the server's test set.", _EVALUATE, "runs/adafed_mnist/config.yaml"),
    "predict": ("Write a checkpoint's predictions to a file in the run's folder.", _EVALUATE, "runs/adafed_mnist/config.yaml"),
    "describe": (
        "Show each client's data, and how features differ, without training.",
        (*_RUN, *_CHOICES),
        "configs/adafed_mnist.yaml",
    ),
    "privacy": (
        "Show epsilon against rounds, cohort and noise, without training, as text; '--layout markdown' or csv: for programs.",
        (
            *_RUN,
            ("--trainer.max_epochs N", "Rounds: one epoch of the Trainer is one communication round."),
            ("--federation.clients_per_round X", "Clients per round: a number such as 10, or a fraction such as 0.5."),
            *_CHOICES,
        ),
        "configs/private_clients_mnist.yaml",
    ),
    "evaluate": (
        "Evaluate every model of a federation, and models of others, at every client, without training.",
        (
            *_RUN,
            ("--checkpoints A.ckpt B.ckpt", "The federation's checkpoint (default: the run's best), and those of others."),
            ("--metrics CLASS", "A torchmetrics class: torchmetrics.classification.MulticlassAccuracy."),
            ("--part NAME", "The part of each client's examples: test, validation or training."),
            ("--resamples N", "Bootstrap resamples behind each interval; 0 for no intervals."),
            ("--federation.pool CLASS", "FlowerPool: evaluate at the sites of a real federation."),
        ),
        "runs/adafed_mnist/config.yaml",
    ),
    "partition": ("Show what each client would hold, without training.", (*_RUN, *_CHOICES), "configs/adafed_mnist.yaml"),
}


def first_page(command: str) -> str:
    """Return the help of a command: its first settings, and where to find the others.

    Args:
        command: name of the command, such as ``fit``.
    """
    what, settings, config = _PAGES[command]
    lines = [f"usage: fl-lightning {command} --config FILE [--SETTING VALUE ...]", "", what, ""]
    lines.append("what a user sets first:")
    lines += [f"  {name:<34}{text}" for name, text in settings]
    lines += ["", "CLASS is a name of fl_lightning, or the dotted path of any other class: my_package.module.Classifier."]
    lines.append("In YAML, every setting has the same name, nested: 'trainer: {max_epochs: 20}'.")
    lines += ["", "more help:"]
    more = {
        "--help SECTION": "a section, from the list below, or one setting",
        "--help CLASS": "a class: AdaFed, DirichletPartitioner, torch.optim.SGD",
        "--help all": "every setting",
        "--config FILE --print_config": "every setting with its value",
    }
    width = max(map(len, more)) + 2
    lines += [f"  fl-lightning {command} {options:<{width}}{text}" for options, text in more.items()]
    lines += ["", "sections:"]
    lines += [f"  {name:<32}{text}" for name, text in SECTIONS.items()]
    lines += ["", f"example: fl-lightning {command} --config {config}"]
    return "\n".join(lines) + "\n"


def has_first_page(command: str) -> bool:
    """Return whether a command has a first page."""
    return command in _PAGES
