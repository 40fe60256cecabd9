"""Convert messages to bytes and back: values as JSON, tensors as safetensors. Nothing is pickled or executed.

A message is ``length of the JSON (8 bytes, little endian) | JSON | safetensors``. In the JSON, a tensor is
``{"tensor": number}``, a message ``{"message": name, "fields": {...}}``, a mapping ``{"map": {...}}`` with keys of text, and a
float that is not finite ``{"float": "nan"}``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from fl_lightning.errors import WireError
from fl_lightning.messages import (
    ClientInfo,
    ClientTask,
    EvalOrder,
    EvalReport,
    ModelLayout,
    NameComparison,
    Note,
    OwnModel,
    OwnModelOrder,
    Progress,
    Question,
    RoundCommit,
    ServerModel,
)
from fl_lightning.types import ClientFailure, ClientUpdate, Compressed, Pull, Snapshot

FORMAT = 11
"""The version of the format, which increases when a message changes."""

_ORDERS = (ClientTask, EvalOrder, ModelLayout, OwnModelOrder, Progress, Question, ServerModel, RoundCommit)
_REPORTS = (ClientInfo, EvalReport, NameComparison, Note, OwnModel)
MESSAGES = {kind.__name__: kind for kind in (*_ORDERS, *_REPORTS, ClientFailure, ClientUpdate, Compressed, Pull, Snapshot)}
_NOT_SENT = {"Snapshot": {"version"}}
"""The fields that are valid only within one process."""


def to_bytes(message: Any) -> bytes:
    """Return a message of :mod:`fl_lightning.messages` as bytes.

    Raises:
        WireError: if a message cannot hold a value.
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    text = json.dumps({"format": FORMAT, "content": _plain(message, tensors)}, allow_nan=False).encode()
    return len(text).to_bytes(8, "little") + text + save(tensors)


def from_bytes(content: bytes) -> Any:
    """Return the message that :func:`to_bytes` encoded in these bytes.

    Raises:
        WireError: if the bytes are not a message, or have another format.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        size = int.from_bytes(content[:8], "little")
        envelope = json.loads(content[8 : 8 + size])
        tensors = load(content[8 + size :])
    except (ValueError, KeyError, RecursionError, SafetensorError) as error:  # KeyError: a type that torch does not have
        raise WireError(f"The bytes are not a message of fl_lightning ({error}).") from error
    if not isinstance(envelope, dict) or envelope.get("format") != FORMAT:
        came = envelope.get("format") if isinstance(envelope, dict) else envelope
        raise WireError(f"The message has format {came!r}, but this version of fl_lightning reads format {FORMAT}.")
    try:
        return _restored(envelope.get("content"), tensors)
    except RecursionError as error:
        raise WireError("The message is nested too deeply.") from error


def _plain(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a value in JSON types, with its tensors stored separately under numbers."""
    if isinstance(value, Tensor):
        number = str(len(tensors))
        tensors[number] = value.detach().cpu().contiguous().clone()  # a view would include its whole base tensor
        return {"tensor": number}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, tensors) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise WireError(f"Cannot send a mapping with the keys {list(value)[:3]}. Use text for its keys.")
        return {"map": {key: _plain(item, tensors) for key, item in value.items()}}
    name = type(value).__name__
    if is_dataclass(value) and MESSAGES.get(name) is type(value):
        sent = [field.name for field in fields(value) if field.name not in _NOT_SENT.get(name, ())]
        return {"message": name, "fields": {field: _plain(getattr(value, field), tensors) for field in sent}}
    raise WireError(f"Cannot send a value of type {name}. Use plain values and tensors in messages.")


def _restored(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return tuple(_restored(item, tensors) for item in value)
    if not isinstance(value, dict):
        return value
    try:
        if "tensor" in value:
            return tensors[value["tensor"]]
        if "float" in value:
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[value["float"]]
        if "map" in value:
            return {key: _restored(item, tensors) for key, item in value["map"].items()}
        kind = MESSAGES[value["message"]]
        return kind(**{name: _restored(item, tensors) for name, item in value["fields"].items()})
    except (KeyError, TypeError, AttributeError) as error:
        raise WireError(f"A part of the message cannot be read ({error!r}).") from error
