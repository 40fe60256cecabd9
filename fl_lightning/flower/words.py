"""Texts that cross the border between server and site, without torch."""

from __future__ import annotations


def printable(text: object) -> str:
    """Return a stranger's text for a terminal: one line, without control characters, of at most 1,000 characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:1000])


def minor(version: str) -> str:
    """Return the part of a version that server and site must share, e.g. ``0.2`` of ``0.2.5``."""
    return ".".join(version.split(".")[:2])
