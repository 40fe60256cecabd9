"""The table of commands, their first pages, and ``--help CLASS``. Does not import torch for the first two."""

from __future__ import annotations

import inspect
import re
import textwrap

from fl_lightning.errors import ConfigurationError, did_you_mean

_STUDIES, _SERVE = "fl_lightning.studies.commands", "fl_lightning.flower.wire.serve"
COMMANDS = {
    "fit": ("", "Train a federation: one epoch is one communication round."),
    "validate": ("", "Evaluate a checkpoint on the server's validation set."),
    "test": ("", "Evaluate a checkpoint on the server's test set."),
    "predict": ("", "Write a checkpoint's predictions to a file."),
    "evaluate": ("", "Evaluate every model at every client, without training."),
    "partition": ("", "Show what each client would hold, without training."),
    "describe": ("", "Show that, and how the features of the clients differ, without training."),
    "privacy": ("", "Show epsilon against rounds, cohort and noise, without training."),
    "compare": (_STUDIES, "Run algorithms x data x seeds, and write the table, tests and figures."),
    "report": (_STUDIES, "Write the report of a run or a study again, from its logs or its table."),
    "init": ("fl_lightning.starter", "Write a small project that runs, as a starting point for your own."),
    "serve": (_SERVE, "Serve a federation over a network: sites connect here."),
    "register": (_SERVE, "Register a site with the server by its public key."),
    "sites": (_SERVE, "List the registered sites, or revoke one."),
    "site": ("fl_lightning.flower.site.parent", "Take part in a federation as a site, with data of your own."),
    "algorithms": ("fl_lightning.cli.commands.algorithms", "List every algorithm with a line, its configuration and its page."),
    "export": ("fl_lightning.cli.commands.export", "Write one client's complete model: the shared part and its own."),
    "schema": ("fl_lightning.cli.commands.schema", "Propose a schema for the tables of all clients from one of them."),
    "configs": ("fl_lightning.cli.commands.configs", "List, show or copy the configurations that come with the package."),
}
"""Each command with its module, empty for those of Lightning's command line, and with what it does."""

_CONFIG = ("--config FILE", "A YAML file; several may be given, and later ones override earlier ones.")
_FOLDER = ("--trainer.default_root_dir DIR", "Folder of the run: checkpoints, logs, config.yaml. Use one folder per run.")
_ROUNDS = ("--trainer.max_epochs N", "Rounds: one epoch of the Trainer is one communication round.")
_COHORT = ("--federation.clients_per_round X", "Clients per round: a number such as 10, or a fraction such as 0.5.")
_DATA = (
    ("--data.datamodule CLASS", "The data: MNISTDataModule, ImageFolderDataModule, TableDataModule, your own."),
    ("--data.partitioner CLASS", "How to divide them: IIDPartitioner, DirichletPartitioner, ShardPartitioner, your own."),
)
_FIT = (
    _ROUNDS,
    ("--trainer.logger false", "Disable loggers. The default is CSV files and W&B, which is offline without an API key."),
    ("--ckpt_path last", "Resume the run in its folder, even after a kill mid-round."),
    ("--model CLASS", "The module: ClassificationTask, RegressionTask, or any LightningModule."),
    ("--model.network CLASS", "Network of these tasks: KerasCNN, LeNet, MLP, ResNet18, your own."),
    ("--model.loss CLASS", "Loss: CrossEntropy, F1WeightedCrossEntropy, torch.nn.CrossEntropyLoss, your own."),
    ("--model.optimizer CLASS", "The clients' optimizer, e.g. torch.optim.SGD; set its rate with --model.optimizer.lr 0.1."),
    *_DATA,
    ("--federation.strategy CLASS", "How the server combines updates: FedAvg, AdaFed, FedMedian, Scaffold, your own."),
    _COHORT,
    ("--federation.local.max_epochs N", "Epochs of a client in each round."),
    ("--federation.enabled false", "Train centrally on the union of the clients' data, as a baseline."),
    ("--seed_everything N", "Seed of the initial weights and of the module's random numbers."),
)
_OF_A_RUN = (
    ("--ckpt_path FILE", "A checkpoint other than the run's best one."),
    ("--data.datamodule CLASS", "Data other than the run's."),
    ("--trainer.accelerator NAME", "cpu, gpu, or auto."),
)
_SITES = (
    ("--checkpoints A.ckpt B.ckpt", "The federation's checkpoint (default: the run's best), and those of others."),
    ("--metrics CLASS", "A torchmetrics class: torchmetrics.classification.MulticlassAccuracy."),
    ("--part NAME", "The part of each client's examples: test, validation or training."),
    ("--resamples N", "Bootstrap resamples behind each interval; 0 for no intervals."),
    ("--federation.pool CLASS", "FlowerPool: evaluate at the sites of a real federation."),
)
_ADAFED, _RUNS_OWN = "configs/adafed_mnist.yaml", "runs/adafed_mnist/config.yaml"
PAGES: dict[str, tuple[tuple[tuple[str, str], ...], str]] = {
    "fit": (_FIT, _ADAFED),
    **dict.fromkeys(("validate", "test", "predict"), (_OF_A_RUN, _RUNS_OWN)),
    **dict.fromkeys(("partition", "describe"), (_DATA, _ADAFED)),
    "privacy": (
        (_ROUNDS, _COHORT, ("--layout NAME", "text, or csv: for programs."), *_DATA),
        "configs/private_clients_mnist.yaml",
    ),
    "evaluate": (_SITES, _RUNS_OWN),
}
"""What a user of a command sets first, after its configuration and its folder, and an example's configuration."""
_PAGE = """usage: fl-lightning {command} --config FILE [--SETTING VALUE ...]

{what}

what a user sets first:
{rows}

CLASS is a name of fl_lightning, or the dotted path of any other class: my_package.module.Classifier.
In YAML, every setting has the same name, nested: 'trainer: {{max_epochs: 20}}'.

more help:
  fl-lightning {command} --help CLASS                       a class: AdaFed, DirichletPartitioner, torch.optim.SGD
  fl-lightning {command} --config FILE --print_config       every setting with its value

sections, and the classes that describe their settings:
  trainer                         lightning.pytorch.Trainer; one epoch is one round
  model                           your module, or ClassificationTask, RegressionTask, KMeansTask
  data                            FederatedDataModule: the datamodule and how its data are divided
  federation                      FederatedOrchestrator: strategy, route, cohorts, and everything else about rounds
  federation.local                LocalTraining; and Attackers, Faults, Availability, Storage, ClientEvaluation

example: fl-lightning {command} --config {config}
"""


def first_page(command: str) -> str:
    """Return the help of a command: its first settings, and where to find the others.

    Args:
        command: name of the command, such as ``fit``.
    """
    settings, config = PAGES[command]
    rows = "\n".join(f"  {name:<34}{text}" for name, text in (_CONFIG, _FOLDER, *settings))
    return _PAGE.format(command=command, what=COMMANDS[command][1], rows=rows, config=config)


def class_help(name: str) -> str:
    """Return the description of a class and its settings.

    Args:
        name: a class of fl_lightning, or the dotted path of any other.

    Raises:
        ConfigurationError: if there is none.
    """
    from jsonargparse import ArgumentParser

    import fl_lightning
    from fl_lightning.compat.jsonargparse import actions_of, is_setting, type_of
    from fl_lightning.config.messages import kinds, located

    found = located(name)
    if not inspect.isclass(found):
        near = did_you_mean(name, fl_lightning.__all__)
        raise ConfigurationError(
            f"There is no class '{name}'.{near} All settings of a run: fl-lightning fit --config FILE --print_config."
        )
    parser = ArgumentParser()
    parser.add_class_arguments(found, None, fail_untyped=False, sub_configs=True)
    settings, known = list(filter(is_setting, actions_of(parser))), kinds(found)
    about = re.split(r"\n(?:Args|Attributes|Raises):|\n\.\. ", inspect.getdoc(found) or "")[0].strip()
    lines = [name, "", _plain(about), "", *([f"Classes: {', '.join(known)}.", ""] if known else [])]
    lines.append("settings:" if settings else "It has no settings.")
    for setting in settings:
        hint = type_of(setting)
        kind = re.sub(r"(?:\w+\.)+", "", getattr(hint, "__name__", "") if inspect.isclass(hint) else str(hint))
        lines.append(f"  {setting.dest} <{kind}> {'required' if setting.required else f'= {setting.default}'}")
        lines += textwrap.wrap(_plain(setting.help or ""), 118, initial_indent=6 * " ", subsequent_indent=6 * " ")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Return a docstring's text without the marks of names."""
    return re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`|``", r"\1", text)
