"""Nothing but signatures, exports and words for readers knows an option."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fl_lightning

ROOT = Path(fl_lightning.__file__).parent
OPTIONS = {"attackers": ("attack", "backdoor", "poison", "mislabel")}
"""The folder of each option, and the parts of names that belong to it."""
LEAVES = {"attackers": ("attacks",)}
"""Further folders that belong to an option."""
MAY_NAME = {"__init__.py", "callbacks/orchestrator.py", "options/__init__.py"}
"""The exports, and the signature of the callback."""
WORDS = ("cli/", "studies/", "starter/")
"""What is read by people: help, lists of algorithms, labels of charts."""
OTHER_MEANINGS = {
    "strategies/krum.py": "attackers",  # a setting of the rule
    "strategies/trimmed_mean.py": "attackers",
    "functional/robust.py": "attackers",
}


def named(path: Path) -> Iterator[str]:
    """Yield the identifiers, modules and texts of a file, without its docstrings."""
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.name for alias in node.names)
            yield getattr(node, "module", None) or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value
        else:
            yield from (value for value in (getattr(node, name, None) for name in ("id", "attr", "arg", "name")) if value)


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_one_folder(option):
    own = (f"options/{option}/", *(f"{leaf}/" for leaf in LEAVES[option]))
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name in MAY_NAME or name.startswith((*own, *WORDS)):
            continue
        hits = {word for word in named(path) if any(part in str(word).lower() for part in OPTIONS[option])}
        hits -= {word for word in hits if OTHER_MEANINGS.get(name, "\n") in str(word).lower()}
        if hits:
            found[name] = hits
    assert not found
