"""Convert messages to bytes and back: values as JSON, and the bytes of tensors. Nothing is pickled or executed.

A message is ``length of the JSON (8 bytes, little endian) | JSON | tensors``. Blanks after the JSON and zeros after each tensor
let each begin at a multiple of 8. The JSON is ``{"format": 14, "tensors": [[type, *shape], ...], "content": ...}``. Within the
content, a tensor is ``{"tensor": number}``, a message ``{"message": name, "fields": {...}}``, a mapping ``{"map": {...}}`` with
keys of text, and a float that is not finite ``{"float": "nan"}``.

safetensors, which has the same layout, copies all tensors two or three times in each direction; here they are copied once into
the message, and lie in it when it is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.errors import WireError
from fl_lightning.messages import (
    ClientInfo,
    ClientTask,
    EvalOrder,
    EvalReport,
    ModelLayout,
    Note,
    Progress,
    Question,
    RoundCommit,
    ServerModel,
)
from fl_lightning.types import ClientFailure, ClientUpdate, Compressed, Pull, Snapshot

FORMAT = 14
"""The version of the format, which increases when a message changes."""

_ORDERS = (ClientTask, EvalOrder, ModelLayout, Progress, Question, ServerModel, RoundCommit)
_REPORTS = (ClientInfo, EvalReport, Note)
MESSAGES = {kind.__name__: kind for kind in (*_ORDERS, *_REPORTS, ClientFailure, ClientUpdate, Compressed, Pull, Snapshot)}
_NOT_SENT = {"Snapshot": {"version"}}
"""The fields that are valid only within one process."""
_TYPES = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
"""The types of tensors by name."""
_STEP = 8
"""The bytes at whose multiples tensors begin."""


def to_bytes(message: Any) -> bytearray:
    """Return a message of :mod:`fl_lightning.messages` as bytes.

    Raises:
        WireError: if a message cannot hold a value.
    """
    tensors: list[Tensor] = []
    content = _plain(message, tensors)
    kinds = [[str(tensor.dtype).removeprefix("torch."), *tensor.shape] for tensor in tensors]
    text = json.dumps({"format": FORMAT, "tensors": kinds, "content": content}, allow_nan=False).encode()
    text += b" " * (-len(text) % _STEP)
    found = bytearray(8 + len(text) + sum(map(_room, tensors)))
    found[: 8 + len(text)] = len(text).to_bytes(8, "little") + text
    start = 8 + len(text)
    for tensor in tensors:
        if tensor.numel():
            _in(found, start, tensor.dtype, tensor.shape).copy_(tensor.detach())
        start += _room(tensor)
    return found


def _room(tensor: Tensor) -> int:
    """Return the bytes that a tensor takes in a message."""
    return -(-tensor.numel() * tensor.element_size() // _STEP) * _STEP


def _in(content: bytearray, start: int, kind: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return the tensor that lies in bytes, in the same memory."""
    return torch.frombuffer(content, dtype=kind, count=math.prod(shape), offset=start).view(tuple(shape))


def from_bytes(content: bytes | bytearray) -> Any:
    """Return the message that :func:`to_bytes` encoded in these bytes. Its tensors lie in them, if they are a ``bytearray``.

    Raises:
        WireError: if the bytes are not a message, or have another format.
    """
    whole = content if isinstance(content, bytearray) else bytearray(content)  # torch needs memory that may change
    try:
        size = int.from_bytes(whole[:8], "little")
        envelope = json.loads(whole[8 : 8 + size])
    except (ValueError, RecursionError) as error:
        raise WireError(f"The bytes are not a message of fl_lightning ({error}).") from error
    if not isinstance(envelope, dict) or envelope.get("format") != FORMAT:
        came = envelope.get("format") if isinstance(envelope, dict) else envelope
        raise WireError(f"The message has format {came!r}, but this version of fl_lightning reads format {FORMAT}.")
    tensors = _tensors(whole, 8 + size, envelope.get("tensors"))
    try:
        return _restored(envelope.get("content"), tensors)
    except RecursionError as error:
        raise WireError("The message is nested too deeply.") from error


def _tensors(content: bytearray, start: int, kinds: Any) -> dict[int, Tensor]:
    """Return the tensors in a message by number; ``kinds`` are their types and shapes.

    Raises:
        WireError: if the bytes do not hold them.
    """
    found = {}
    try:
        for number, (name, *shape) in enumerate(kinds):
            kind = _TYPES[name]
            if not all(type(size) is int and 0 <= size < 2**60 for size in shape):
                raise ValueError("a tensor has an impossible shape")
            size = math.prod(shape)
            found[number] = _in(content, start, kind, shape) if size else torch.zeros(*shape, dtype=kind)
            if kind is torch.bool and size and int(found[number].view(torch.uint8).max()) > 1:
                raise ValueError("a truth value is neither 0 nor 1")
            start += _room(found[number])
    except (ValueError, TypeError, KeyError, RuntimeError) as error:  # of torch, if the bytes are too few
        raise WireError(f"The bytes are not a message of fl_lightning ({error}).") from error
    if start != len(content):
        raise WireError("The bytes are not a message of fl_lightning (their number is not that of its tensors).")
    return found


def _plain(value: Any, tensors: list[Tensor]) -> Any:
    """Return a value in JSON types, with its tensors stored separately under numbers."""
    if isinstance(value, Tensor):
        if value.dtype not in _TYPES.values():
            raise WireError(f"Cannot send a tensor of {value.dtype}. Use one of {', '.join(_TYPES)}.")
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
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


def _restored(value: Any, tensors: Mapping[int, Tensor]) -> Any:
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
