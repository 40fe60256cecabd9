"""Read checkpoints, only if they are complete, and without running code that they contain."""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import torch
from lightning.fabric.utilities.cloud_io import get_filesystem
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from fl_lightning.compat.lightning import class_only
from fl_lightning.compat.python import modules_today
from fl_lightning.errors import CheckpointError, ConfigurationError, FederationError
from fl_lightning.utilities.argument_types import ChecksTypes

_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
"""First bytes of files of torch.save, in its current and its old format."""
_HARMLESS = ("argparse", "builtins", "collections", "datetime", "decimal", "enum", "fractions", "functools", "pathlib", "uuid")
"""Modules of the standard library whose classes only hold values. Any other could be used to run code."""
TRUSTED = "federation.checkpoints.trusted_classes"
_OTHER_THINGS = "contains more than tensors and plain values, which could run code and is not loaded"

Source = str | os.PathLike[str] | IO[bytes]
"""A file, a URL, or an open file."""


def read_checkpoint(source: Source, map_location: Any = None, trusted: Sequence[str] = ()) -> Any:
    """Read a checkpoint with ``weights_only=True``, from any source.

    Args:
        source: a file, a URL of any protocol that fsspec knows, or an open file.
        map_location: device to load to, as for ``torch.load``.
        trusted: dotted paths of classes that may be created besides tensors and plain values.

    Raises:
        CheckpointError: if it is missing or damaged, or contains anything else.
    """
    with checked(source, trusted) as file:
        try:
            return torch.load(file, map_location=map_location, weights_only=True)
        except UnpicklingError:
            raise
        except Exception as error:
            raise unreadable(source, error) from error


def refuse_unsafe(weights_only: bool | None) -> None:
    """Reject ``weights_only=False``.

    Raises:
        CheckpointError: if it is False.
    """
    if weights_only is False:
        raise CheckpointError(
            "'weights_only' is False, which would let the author of the checkpoint run code here. Remove it. If the "
            f"checkpoint needs your own classes, name them in '{TRUSTED}'."
        )


class LoadsSafely(ChecksTypes):
    """Make ``load_from_checkpoint`` safe, also for URLs; inherit from it before LightningModule or LightningDataModule."""

    @class_only
    def load_from_checkpoint(
        cls,  # noqa: N805
        checkpoint_path: Source,
        *args: Any,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Load as Lightning does, but only tensors, plain values and ``torch.serialization.add_safe_globals``.

        Raises:
            CheckpointError: if the file is missing or damaged, or contains anything else.
        """
        refuse_unsafe(weights_only)
        with checked(checkpoint_path) as file:
            return super().load_from_checkpoint(file, *args, weights_only=True, **kwargs)  # type: ignore[misc]


@contextmanager
def checked(source: Source, trusted: Sequence[str] = ()) -> Iterator[IO[bytes]]:
    """Open a checkpoint after checking that it is complete and contains only trusted classes; see :func:`read_checkpoint`."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(_opened(source))
            stack.enter_context(trusting(trusted))
            damage = _damage(file)
            if damage:
                raise unreadable(source, damage)
            _refuse_untrusted(file, source)
            file.seek(0)
        except FederationError:
            raise
        except Exception as error:
            raise unreadable(source, error) from error
        try:
            yield file
        except UnpicklingError as error:  # not visible in the list of classes, such as filling a dict of another class
            raise unreadable(source, error) from error


@contextmanager
def trusting(names: Sequence[str]) -> Iterator[None]:
    """Let torch also create objects of these classes while a block runs."""
    with safe_globals([(find_trusted(name), name) for name in names]):
        yield


def find_trusted(name: str) -> Any:
    """Return the class, or the function of a package, with a dotted path.

    Raises:
        ConfigurationError: if it cannot be imported, or could run arbitrary code.
    """
    try:
        found = pkgutil.resolve_name(_name_today(name))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"'{TRUSTED}' contains '{name}', which cannot be imported ({error}). Set the dotted path of a "
            "class, package.module.Class."
        ) from error
    if _runs_code(name, found):
        raise ConfigurationError(
            f"'{TRUSTED}' contains '{name}', which can run arbitrary code, so a checkpoint that may use it "
            "could do anything. Remove it."
        )
    return found


def require_trusted(names: Sequence[str] | None) -> list[str]:
    """Return the setting ``trusted_classes`` as a list of dotted paths that can be imported.

    Raises:
        ConfigurationError: if it is anything else.
    """
    paths = list(names or [])
    if isinstance(names, str) or not all(isinstance(name, str) for name in paths):
        raise ConfigurationError(
            f"'{TRUSTED}' must be a list of dotted paths, but is {names!r}. Set it to a list such as [argparse.Namespace]."
        )
    for name in paths:
        find_trusted(name)
    return paths


def untrusted(file: IO[bytes]) -> list[str]:
    """Return the sorted dotted paths of what a checkpoint needs besides tensors, plain values and trusted classes."""
    file.seek(0)
    try:
        return sorted(get_unsafe_globals_in_checkpoint(file))
    except Exception:  # torch's old format, or not a checkpoint: reading it reports the reason
        return []


def can_run_code(name: str) -> bool:
    """Return whether the object with this dotted path could run arbitrary code; nothing is imported to find out."""
    module, _, attribute = _name_today(name).rpartition(".")
    return _runs_code(name, getattr(sys.modules.get(module), attribute, None))


def _runs_code(name: str, found: Any) -> bool:
    homes = {path.partition(".")[0] for path in (_name_today(name), getattr(found, "__module__", None) or "")}
    own = homes & set(sys.stdlib_module_names)
    return bool(own) and not (inspect.isclass(found) and own <= set(_HARMLESS))


def _name_today(name: str) -> str:
    """Return a dotted path with Python 3's name of a module; pickle writes Python 2's, such as commands for subprocess."""
    module, _, attribute = name.rpartition(".")
    return f"{modules_today().get(module, module)}.{attribute}" if module else name


def _refuse_untrusted(file: IO[bytes], source: Source) -> None:
    names = untrusted(file)
    if not names:
        return
    bad = [_name_today(name) for name in names if can_run_code(name)]
    if bad:
        remedy = f"'{bad[0]}' can run arbitrary code and cannot be trusted. Use another checkpoint."
    else:
        remedy = (
            f"If you trust its author, set '{TRUSTED}' to [{', '.join(names)}] (for 'load_from_checkpoint': "
            "torch.serialization.add_safe_globals)."
        )
    raise CheckpointError(f"'{_name(source)}' {_OTHER_THINGS}: {', '.join(map(_name_today, names))}. {remedy}")


@contextmanager
def _opened(source: Source) -> Iterator[IO[bytes]]:
    if not isinstance(source, str | os.PathLike):
        yield source
    elif "://" not in str(source):
        with open(source, "rb") as file:
            yield file
    else:
        with tempfile.TemporaryFile() as copy:
            with get_filesystem(str(source)).open(str(source), "rb") as remote:
                shutil.copyfileobj(remote, copy)
            yield copy


def _damage(file: IO[bytes]) -> str:
    """Return what is wrong with a file by its checksums, which torch's old format does not have; empty if it is complete."""
    file.seek(0)
    begins = file.read(len(_ZIP))
    if begins != _ZIP and not zipfile.is_zipfile(file):
        return "" if begins.startswith(_PICKLE) else "it was not written by torch.save"
    try:
        with zipfile.ZipFile(file) as archive:
            entry = archive.testzip()
    except Exception as error:
        return f"it is truncated or damaged: {error}"
    return f"its entry '{entry}' is damaged" if entry else ""


def unreadable(source: Source, cause: Exception | str) -> CheckpointError:
    """Return the error for a checkpoint that cannot be read; it names the newest complete one in the same folder."""
    said = str(cause) or type(cause).__name__
    if "weights_only" in said:  # torch advises to load it anyway, which would let its author run code here
        return CheckpointError(f"'{_name(source)}' {_OTHER_THINGS} ({refusal(said)}). Use another checkpoint.")
    whole = _newest_whole(source)
    remedy = f", such as {whole}, the newest complete one in the folder" if whole else ", or start again without 'ckpt_path'"
    why = said.splitlines()[0][:200]
    return CheckpointError(f"'{_name(source)}' is not a readable checkpoint ({why}). Use another{remedy}.")


def refusal(said: str) -> str:
    """Extract from torch's message what it does not load."""
    detail = said.rpartition("WeightsUnpickler error: ")[2].strip()
    return re.split(r"\. Please|\n", detail)[0].replace("via `add_safe_globals`", "as trusted")[:200]


def _newest_whole(source: Source) -> str:
    """Return the name of the newest complete checkpoint in the same folder; an empty string if it has none."""
    if not isinstance(source, str | os.PathLike) or "://" in str(source):
        return ""
    broken = Path(source)
    others = [path for path in broken.parent.glob("*.ckpt") if path.name != broken.name and path.is_file()]
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            with open(path, "rb") as file:
                if not _damage(file):
                    return path.name
        except OSError:
            continue
    return ""


def _name(source: Source) -> str:
    return str(source) if isinstance(source, str | os.PathLike) else "the checkpoint"
