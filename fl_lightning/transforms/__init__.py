"""Provide transforms, which change a client's update on its way to the server."""

from fl_lightning.transforms.base import Message, Sender, Transform
from fl_lightning.transforms.clip_update import ClipUpdate
from fl_lightning.transforms.half_precision import HalfPrecision
from fl_lightning.transforms.quantize import Quantize
from fl_lightning.transforms.top_k import TopK

__all__ = ["ClipUpdate", "HalfPrecision", "Message", "Quantize", "Sender", "TopK", "Transform"]
