"""Make the C library's allocator keep freed memory: steps of a training reuse it, and so do pieces of models on their way."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Mapping

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # constants of malloc.h
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
    return _set({_MMAP_THRESHOLD: _LARGEST, _TRIM_THRESHOLD: -1})


def reuse_pieces(pause: float = 5.0) -> bool:
    """Let glibc reuse freed blocks of up to 16 MiB, and return what is unused now and then, for the rest of the process.

    For a process that passes models on in pieces of 5 MB, each in any of many threads and copied many times. By default, glibc
    keeps several pieces in the heap of each thread. If it returned each at once, faulting in the pages of the next one would
    take ten times as long as the copy.

    Args:
        pause: the seconds between two returns of unused memory, > 0.

    Returns:
        Whether it was set; see :func:`keep_freed_memory`.
    """
    if not _set({_MMAP_THRESHOLD: 2**24, _TRIM_THRESHOLD: 2**27, _ARENA_MAX: 1}):
        return False
    threading.Thread(target=_trim, args=(pause,), daemon=True).start()
    return True


def _trim(pause: float) -> None:
    trim = ctypes.CDLL(None).malloc_trim
    while True:
        time.sleep(pause)
        trim(0)


def share_heaps() -> bool:
    """Let the threads of the process share two of glibc's heaps, so that each does not keep the largest blocks that it freed.

    Returns:
        Whether it was set; see :func:`keep_freed_memory`.
    """
    return _set({_ARENA_MAX: 2})


def _set(options: Mapping[int, int]) -> bool:
    if any(name in os.environ for name in _OWN_SETTINGS) or "malloc" in os.environ.get("LD_PRELOAD", ""):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
        ctypes.CDLL(None).gnu_get_libc_version  # noqa: B018  # musl and macOS lack it
    except (AttributeError, OSError, TypeError):
        return False
    return all(bool(set_option(name, value)) for name, value in options.items())
