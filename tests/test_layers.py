"""The layout is the architecture: a module imports from layers below its own, never from beside or above."""

from __future__ import annotations

import ast
import importlib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import fl_lightning

ROOT = Path(fl_lightning.__file__).parent
LAYER = {
    "errors": 0,
    "arguments": 0,
    "argument_types": 0.2,
    "help_pages": 0,
    "allocator": 0,
    "atomic_file": 0,
    "types": 0,
    "messages": 0.5,
    "wire": 1,
    "rules": 1.5,
    "collectives": 2,
    "moved": 0,
    "source_version": 0,
    "compat": 0,
    "functional": 1,
    "__init__": 1,
    "checkpoint_file": 1,
    "config_files": 1,
    "null_settings": 1,
    "wrong_value": 1,
    "folder_lock": 1,
    **dict.fromkeys(("config_arguments", "config_command", "algorithm_command"), 2),
    **dict.fromkeys(
        (
            "attacks",
            "losses",
            "metrics",
            "models",
            "optimizers",
            "partitioners",
            "strategies",
            "routes",
            "transforms",
            "reporting",
        ),
        2,
    ),
    **dict.fromkeys(("tasks", "data"), 3),
    "settings": 4,
    "clients": 5,
    "plugins": 6,
    "server": 7,
    "callbacks": 8,
    "flower": 8,
    **dict.fromkeys(("cli_names", "export_command"), 8),
    **dict.fromkeys(("cli_help", "cli_messages", "cli_output", "cli_trainer"), 9),
    "cli_parser": 9.5,
    "cli": 10,
    **dict.fromkeys(("studies", "starter", "dashboard"), 11),
    "command": 12,
    "__main__": 13,
}


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    hidden = {
        id(n)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for n in ast.walk(block)
    }
    found = set()
    for node in ast.walk(tree):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else names
        found |= {name.split(".")[1] for name in names if name.startswith("fl_lightning.") and id(node) not in hidden}
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    mine = part_of(path)
    for other in imports(path) - {mine}:
        assert LAYER[other] < LAYER[mine], f"{mine} (layer {LAYER[mine]}) imports {other} (layer {LAYER[other]})"


def imported_modules(path: Path) -> set[str]:
    """Modules of the package that importing this one imports at once, by dotted name."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fl_lightning"):
            package = ROOT.parent / (node.module or "").replace(".", "/")
            inner = {f"{node.module}.{alias.name}" for alias in node.names if (package / f"{alias.name}.py").exists()}
            found |= inner or {node.module or ""}
    return found


def test_no_import_circle():
    """Also inside of a layer."""
    names = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in ROOT.rglob("*.py")
    }
    graph = {name: imported_modules(path) & names.keys() for name, path in names.items()}
    order = tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle
    assert len(order) == len(names)


def test_every_part_has_a_layer():
    assert {part_of(path) for path in ROOT.rglob("*.py")} <= set(LAYER)


def test_public_names_are_documented_and_exported():
    for name in fl_lightning.__all__:
        value = getattr(fl_lightning, name)
        assert name == "__version__" or value.__doc__, name


def test_the_stub_lists_the_same_names():
    """A type checker reads the stub, Python the table."""
    tree = ast.parse((ROOT / "__init__.pyi").read_text())
    listed = {alias.asname: node.module for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(fl_lightning.__all__) == {*listed, "__version__"}
    for name, module in listed.items():
        assert getattr(fl_lightning, name) is getattr(importlib.import_module(module), name)


def test_an_unknown_module_is_unknown():
    with pytest.raises(ModuleNotFoundError, match=r"fl_lightning\.clients\.nothing"):
        importlib.import_module("fl_lightning.clients.nothing")
