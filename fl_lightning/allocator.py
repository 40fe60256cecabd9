"""The C library's memory allocator: keep what is freed, instead of handing it back and faulting it in anew every step."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGEST = 2**25
"""What every glibc allows. Larger allocations, such as whole models, stay mapped: kept in the heap they leave holes."""
_OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next allocation, for the rest of the process.

    A training step on a CPU allocates and frees the same large tensors again and again. By default glibc maps each anew
    (``M_MMAP_THRESHOLD``) and trims what is free at the top (``M_TRIM_THRESHOLD``), so that every step faults its pages
    in: 15 to 20 % of a step of AdaFed's CNN. With this the process holds on to the most that it has needed, but for single
    allocations above 32 MiB, which are still mapped and handed back.

    Returns:
        Whether it was set: not where another allocator or C library runs, nor where the environment sets glibc's own.
    """
    if any(name in os.environ for name in _OWN_SETTINGS) or "malloc" in os.environ.get("LD_PRELOAD", ""):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
        ctypes.CDLL(None).gnu_get_libc_version  # noqa: B018  # musl and macOS have none
    except (AttributeError, OSError, TypeError):
        return False
    return bool(set_option(_MMAP_THRESHOLD, _LARGEST)) and bool(set_option(_TRIM_THRESHOLD, -1))
