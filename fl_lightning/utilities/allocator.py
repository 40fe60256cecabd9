"""Make the C library's allocator keep freed memory, instead of returning it and faulting it in again at every step."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # constants of malloc.h
_LARGEST = 2**25
"""The maximum that every glibc allows. Larger allocations, such as whole models, stay mapped: in the heap they leave holes."""
_OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next allocation, for the rest of the process.

    A training step on a CPU allocates and frees the same large tensors again and again. By default, glibc maps each one anew
    (``M_MMAP_THRESHOLD``) and trims free memory at the top (``M_TRIM_THRESHOLD``), so every step faults its pages in again.
    This takes 15 to 20 % of a step of AdaFed's CNN. With this setting, the process keeps the most memory that it has needed,
    except for single allocations above 32 MiB, which are still mapped and returned.

    Returns:
        Whether it was set: not with another allocator or C library, and not if the environment configures glibc's allocator.
    """
    if any(name in os.environ for name in _OWN_SETTINGS) or "malloc" in os.environ.get("LD_PRELOAD", ""):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
        ctypes.CDLL(None).gnu_get_libc_version  # noqa: B018  # musl and macOS lack it
    except (AttributeError, OSError, TypeError):
        return False
    return bool(set_option(_MMAP_THRESHOLD, _LARGEST)) and bool(set_option(_TRIM_THRESHOLD, -1))
