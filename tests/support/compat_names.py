"""Private names of other libraries: where the package uses them."""

import ast
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from inspect import isclass
from pathlib import Path

import fl_lightning

ROOT = Path(fl_lightning.__file__).parent
_LOOKS_UP = {"getattr", "setattr", "hasattr", "delattr", "attrgetter"}
_NO_SECRETS = {"_replace", "_fields", "_asking", "_time_was_read"}
"""A named tuple's documented names, and keys of our own ClientRun."""


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name != "_"


def _is_pythons(name: str) -> bool:
    """Whether Python gives the name to classes by itself, in ``abc``, ``typing`` and ``enum``."""
    return name in ("_abc_impl", "_is_protocol") or name.endswith("_")


def _is_self(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _name(node: ast.expr) -> str:
    """The name of a function that is called, without what it belongs to; much faster than to unparse it."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def defined(tree: ast.AST) -> set[str]:
    """The private names that a file defines itself."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def used(tree: ast.AST, here: set[str], anywhere: set[str]) -> Iterator[str]:
    """The private names that a file uses without having defined them: on ``self``, no file of the package may have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            names = [*module.split("."), *(part for alias in node.names for part in alias.name.split("."))]
            names = [] if module.startswith("fl_lightning") else names
            yield from (name for name in names if is_private(name) or name == "connectors")
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            if node.attr not in (anywhere if _is_self(node.value) else here) | _NO_SECRETS:
                yield node.attr
        elif isinstance(node, ast.Call) and _name(node.func) in _LOOKS_UP:
            texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            yield from (text for text in texts if is_private(text) and text not in here | _NO_SECRETS)


def foreign_names() -> set[str]:
    """File and name of each use outside of ``compat``."""
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}
    trees = {path: tree for path, tree in trees.items() if not path.startswith(("compat/", "starter/"))}
    own = {path: defined(tree) for path, tree in trees.items()}
    anywhere = set[str]().union(*own.values())
    return {f"{path}: {name}" for path, tree in trees.items() for name in used(tree, own[path], anywhere)}


def overridden() -> set[str]:
    """Class and name of what replaces, outside of ``compat``, a private attribute or method of another library's class."""
    found = set[str]()
    for info in pkgutil.walk_packages([str(ROOT)], "fl_lightning."):
        if info.name.startswith(("fl_lightning.compat", "fl_lightning.starter")) or info.name.endswith("__main__"):
            continue
        for kind in vars(import_module(info.name)).values():
            if isclass(kind) and kind.__module__ == info.name:
                others = [base for base in kind.__mro__ if base.__module__.split(".")[0] != "fl_lightning"]
                mine = [name for name in vars(kind) if is_private(name) and not _is_pythons(name)]
                found |= {f"{kind.__qualname__}.{name}" for name in mine if any(name in vars(base) for base in others)}
    return found
