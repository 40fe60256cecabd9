"""Checkpoints that are written completely or not at all, and read only if complete and without running code in them."""

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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import torch
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.fabric.utilities.data import AttributeDict
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins import TorchCheckpointIO
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from fl_lightning.compat.lightning import class_only, innermost_checkpoint_io
from fl_lightning.compat.python import modules_today
from fl_lightning.compat.torch import tree_map
from fl_lightning.errors import CheckpointError, ConfigurationError, FederationError
from fl_lightning.utilities.argument_types import ChecksTypes
from fl_lightning.utilities.atomic_file import PARTIAL, fill_whole
from fl_lightning.utilities.collectives import Collectives
from fl_lightning.utilities.folder_lock import lock_folder

_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
"""First bytes of files of torch.save, in its current and its old format."""
_HARMLESS = ("argparse", "builtins", "collections", "datetime", "decimal", "enum", "fractions", "functools", "pathlib", "uuid")
"""Modules of the standard library whose classes only hold values. Any other could be used to run code."""
_UNFINISHED = PARTIAL.format(name="*.ckpt", process="*")
"""Names of checkpoints while they are being written."""
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
    """Return the setting ``trusted_classes`` as a list.

    Raises:
        ConfigurationError: if a class cannot be imported or could run arbitrary code.
    """
    paths = list(names or [])
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
    others = [path for path in Path(source).parent.glob("*.ckpt") if path.name != Path(source).name]
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True):
        with suppress(OSError), open(path, "rb") as file:
            if not _damage(file):
                return path.name
    return ""


def _name(source: Source) -> str:
    return str(source) if isinstance(source, str | os.PathLike) else "the checkpoint"


class AtomicCheckpointIO(ChecksTypes, TorchCheckpointIO):
    """Write a checkpoint next to its target, sync it to disk, and rename it; read only tensors and plain values.

    Lightning writes to the system's temp folder and moves the file: across file systems that is a copy, and a kill leaves an
    empty file. Here a kill at any moment, or a full disk, leaves the previous checkpoint or the new one. Lightning still
    writes to paths with a protocol (``s3://``).

    Checkpoints are read with ``weights_only=True`` from any source: a URL is downloaded first. Checksums are compared
    before loading, which reads a local file one more time.

    Args:
        trusted_classes: dotted paths of classes that a checkpoint may hold besides tensors and plain values.

    Raises:
        ConfigurationError: if a class cannot be imported or could run arbitrary code.
    """

    def __init__(self, trusted_classes: Sequence[str] | None = None) -> None:
        self.trusted_classes = require_trusted(trusted_classes)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write the checkpoint as the class describes.

        Raises:
            CheckpointError: if it cannot be written; the previous checkpoint is kept.
        """
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        try:
            fill_whole(target, lambda file: torch.save(checkpoint, file))  # tensor by tensor, never in memory as a whole
        except Exception as raised:
            error = raised if isinstance(raised, OSError) else raised.__context__  # torch may raise one of its own after it
            if not isinstance(error, OSError):
                raise
            what = f"Cannot write the checkpoint '{target}' ({error.strerror})."
            if target.exists() or (checkpoint.get("epoch", 0) > 0 and any(target.parent.glob("*.ckpt"))):
                advice = "The previous checkpoint is unchanged. Free some space, and resume with '--ckpt_path last'."
            else:
                other = "or set 'trainer.default_root_dir' to another disk"
                advice = f"No round is saved yet. Free some space, {other}, and start again."
            raise CheckpointError(f"{what} {advice}") from error

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Any = lambda storage, location: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read a checkpoint as the class describes.

        Raises:
            CheckpointError: if the file is missing or damaged, or holds a class that is not trusted, or if
                ``weights_only`` is False.
        """
        refuse_unsafe(weights_only)
        checkpoint: dict[str, Any] = read_checkpoint(path, map_location, self.trusted_classes)
        return checkpoint


def use_safe_checkpoints(trainer: Trainer, trusted: Sequence[str]) -> list[str] | None:
    """Make a Trainer save and load with :class:`AtomicCheckpointIO`, unless the user has set another IO.

    Args:
        trainer: any Trainer; an IO that wraps another stays the outer one.
        trusted: dotted paths of classes, as in :class:`AtomicCheckpointIO`.

    Returns:
        All trusted classes, or None if the user's own IO reads checkpoints.
    """
    used, replace = innermost_checkpoint_io(trainer)
    if type(used) is TorchCheckpointIO:
        used = AtomicCheckpointIO()
        replace(used)
    if not isinstance(used, AtomicCheckpointIO):
        return None
    used.trusted_classes = list(dict.fromkeys([*used.trusted_classes, *trusted]))
    return used.trusted_classes


def checkpoint_folders(trainer: Trainer) -> list[Path]:
    """Return the local folders in which a Trainer saves checkpoints."""
    folders = (getattr(saver, "dirpath", None) for saver in trainer.checkpoint_callbacks)
    return sorted({Path(folder).absolute() for folder in folders if folder is not None and "://" not in str(folder)})


def lock_checkpoints(trainer: Trainer, cleanup: ExitStack) -> None:
    """Keep other runs out of the checkpoint folders, and remove partial files that killed processes left there.

    Rank 0 does this; if it fails, all ranks end.

    Args:
        trainer: Trainer that is about to fit, with checkpoint callbacks set up.
        cleanup: exit stack that releases the folders.

    Raises:
        ConfigurationError: if another run uses a folder, or a folder is not writable.
    """
    failure: Exception | None = None
    try:
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            for folder in checkpoint_folders(trainer):
                if cleanup.enter_context(lock_folder(folder)):
                    for path in folder.glob(_UNFINISHED):
                        path.unlink(missing_ok=True)
    except ConfigurationError as error:
        failure = error
    Collectives(trainer).gather_or_raise(None, failure)


def make_plain(checkpoint: dict[str, Any]) -> None:
    """Turn dictionaries of Lightning's own class inside the hyperparameters into plain ones, which can be read safely.

    A part of a module that has hyperparameters of its own hands them to the module as such dictionaries.

    Args:
        checkpoint: a checkpoint that is about to be saved; its hyperparameters are replaced, not changed in place.
    """
    key = LightningModule.CHECKPOINT_HYPER_PARAMS_KEY
    if key in checkpoint:
        checkpoint[key] = tree_map(_plain, checkpoint[key])


def _plain(leaf: Any) -> Any:
    return tree_map(_plain, dict(leaf)) if type(leaf) is AttributeDict else leaf
