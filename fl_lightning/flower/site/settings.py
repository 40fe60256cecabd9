"""Read a site's data.yaml, which its own staff wrote and which never leaves it."""

from __future__ import annotations

import re
from argparse import ArgumentError
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningDataModule

from fl_lightning.compat.jsonargparse import actions_of
from fl_lightning.config.files import refuse_unclear
from fl_lightning.config.messages import explain, refuse_null
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.flower.checks import refuse_parts
from fl_lightning.flower.site.policy import Policy, read_policy


@dataclass
class SiteSettings:
    """Describe a site: the contents of its data.yaml.

    Args:
        datamodule: the datamodule whose training set is the site's.
        validation: a datamodule whose training set is the site's own validation part.
        test: a datamodule whose training set is the site's own test part.
        client_validation: the share of the training set held back for validation, in [0, 1), instead of ``validation``.
        client_test: the share held back for a test, in [0, 1), instead of ``test``.
        seed: with the site's number, draws the shares that are held back; a simulation with the same seed of its partitioner (0
            by default) holds back the same rows. Only the site knows it.
        policy: what a server may have this site do, and what it learns.
        device: the device to train on: ``auto``, ``cpu``, ``cuda``, or ``cuda:1`` for the second GPU.

    Raises:
        ConfigurationError: if the device is not one of these.
    """

    datamodule: LightningDataModule
    validation: LightningDataModule | None = None
    test: LightningDataModule | None = None
    client_validation: float = 0.0
    client_test: float = 0.0
    seed: int = 0
    policy: Policy = field(default_factory=Policy)
    device: str = "auto"

    def __post_init__(self) -> None:
        known = re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device)
        require(known is not None, "device", "auto, cpu, cuda or cuda:NUMBER", self.device)
        refuse_parts({"datamodule": self.datamodule, "validation": self.validation, "test": self.test})

    def torch_device(self) -> torch.device:
        """Return the device.

        Raises:
            ConfigurationError: if this machine does not have it.
        """
        found = "cuda" if self.device == "auto" and torch.cuda.is_available() else self.device
        device, number = torch.device("cpu" if found == "auto" else found), torch.cuda.device_count()
        if device.type == "cuda" and (device.index or 0) >= number:
            raise ConfigurationError(f"'device' is '{self.device}', but torch finds {number} GPUs here. Set 'device: auto'.")
        return device


def read_settings(path: Path) -> SiteSettings:
    """Read data.yaml, which the site's own staff wrote and which may name any class.

    Args:
        path: the file.

    Raises:
        ConfigurationError: if it cannot be read.
    """
    import fl_lightning.data  # noqa: F401 (so that short names of its datamodules are known)

    if not path.is_file():
        raise ConfigurationError(f"'{path}' does not exist. Write a data.yaml; see docs/real_federation.md.")
    if not path.read_bytes().strip():
        raise ConfigurationError(f"'{path}' is empty. Set 'datamodule' in it; see docs/real_federation.md.")
    parser = _parser()
    try:
        text = path.read_text(encoding="utf-8")
        refuse_unclear(text)
        content = yaml.safe_load(text)
        given = content.get("policy") if isinstance(content, dict) else None
        if isinstance(content, dict) and "schema" in content:
            raise ConfigurationError("'schema' is now one of the datamodule: set it there to a copy of the server's file.")
        policy = read_policy(given)
        parsed = parser.parse_path(str(path)) if policy is given else parser.parse_object({**content, "policy": policy})
        refuse_null(parsed, parser)
        return SiteSettings(**vars(parser.instantiate(parsed)))
    except Exception as error:
        raise ConfigurationError(f"'{path}' cannot be read: {_cause(error, parser)}") from error


@cache
def _parser() -> ArgumentParser:
    """Return the parser of every data.yaml."""
    parser = ArgumentParser(prog="data.yaml", exit_on_error=False)
    parser.add_class_arguments(SiteSettings, None, fail_untyped=False)
    return parser


def _cause(error: Exception, parser: ArgumentParser) -> str:
    """Return what is wrong with the settings, with the nearest name of one that does not exist."""
    if not (isinstance(error, ArgumentError | TypeError | KeyError) or "Does not validate" in str(error)):
        return str(error) or type(error).__name__
    said = explain(str(error), [option for action in actions_of(parser) for option in action.option_strings])
    return f"{said.partition(' All settings')[0].replace(' --', ' ')[:600]} See docs/site_policy.md."
