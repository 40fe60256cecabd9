"""The layout is the architecture: a module imports from layers below its own, never from beside or above."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import fl_lightning

ROOT = Path(fl_lightning.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
LAYER = {
    "errors": 0,
    "types": 0,
    "compat": 0.1,
    "messages": 0.5,
    "core": 1.2,
    "utilities": 0.2,
    "__init__": 2.1,  # the names of the strategies are in their own list
    "wire": 1,
    "config": 1.1,
    "functional": 1,
    "rules": 1.5,
    "utilities/collectives": 2,
    "utilities/checkpoints": 2.5,
    **dict.fromkeys(("attacks", "losses", "metrics", "models", "optimizers", "partitioners"), 2),
    **dict.fromkeys(("strategies", "routes", "transforms", "reporting"), 2),
    **dict.fromkeys(("tasks", "data"), 3),
    "cells": 3.2,
    "options": 3.5,
    "settings": 4,
    "clients": 5,
    "server": 7,
    **dict.fromkeys(("options/asynchronous", "options/secure_aggregation", "options/example_privacy/clients"), 7.5),
    "callbacks": 8,
    "evaluation": 9,
    "flower": 8,
    **dict.fromkeys(("cli", "cli/commands"), 10),
    **dict.fromkeys(("studies", "starter"), 11),
    "cli/command": 12,
    "__main__": 13,
}
"""The layer of each package or module; that of a part inside of a package counts for this part."""

HALVES = ("at_server", "at_clients", "check_settings", "check_module", "check_sent")
"""The methods in which an option imports its halves and its checks."""


def part_of(name: str) -> str:
    """Return the entry of a module, whose name has slashes and no root, in the table."""
    parts = name.removesuffix(".py").split("/")
    # These import the other parts of an option only if it is in use.
    if parts[0] == "options" and (len(parts) < 3 or parts[-1] in ("settings", "__init__")):
        return "options"
    return next(part for end in range(len(parts), 0, -1) if (part := "/".join(parts[:end])) in LAYER)


def modules_of(node: ast.AST) -> set[str]:
    """Return the modules of the package that a statement imports, by dotted name."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names if alias.name.startswith("fl_lightning.")}
    if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("fl_lightning"):
        return set()
    package = ROOT.parent / (node.module or "").replace(".", "/")
    inside = {alias.name for alias in node.names if (package / alias.name).is_dir() or (package / f"{alias.name}.py").exists()}
    inner = {f"{node.module}.{name}" for name in inside}
    return inner or ({node.module or ""} - {"fl_lightning"})


@cache
def imports(path: Path, everything: bool = False) -> set[str]:
    """Return what a module imports; an option imports its halves and its checks only where it is in use.

    Args:
        path: the module.
        everything: whether to include these, and what is imported for types only.
    """
    tree = ast.parse(path.read_text())
    hidden = (
        set()
        if everything
        else {
            id(n)
            for block in ast.walk(tree)
            if (isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test))
            or (isinstance(block, ast.FunctionDef) and block.name in HALVES and "options" in path.parts)
            for n in ast.walk(block)
        }
    )
    return {name for node in ast.walk(tree) if id(node) not in hidden for name in modules_of(node)}


def test_imports_point_down():
    wrong = []
    for path in MODULES.values():
        name = path.relative_to(ROOT).as_posix()
        mine = part_of(name)
        others = {part_of("/".join(found.split(".")[1:])) for found in imports(path)} - {mine}
        wrong += [f"{name} imports {other}" for other in others if LAYER[other] >= LAYER[mine]]
    assert not wrong


def test_no_import_circle():
    """Also inside of a layer, by imports inside of functions, and by those for types only."""
    graph = {name: imports(path, everything=True) & MODULES.keys() - {name} for name, path in MODULES.items()}
    order = tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle
    assert len(order) == len(MODULES)


def test_public_names_are_documented_and_exported():
    for name in fl_lightning.__all__:
        value = getattr(fl_lightning, name)
        assert name == "__version__" or value.__doc__, name


def test_a_site_loads_nothing_of_the_server():
    """Neither directly nor through another module, also when a function imports it."""
    seen, waiting = {}, {"fl_lightning.flower.site.parent": "", "fl_lightning.flower.site.worker": ""}
    at_sites = ("clients", "checks")  # what options import there in some of their methods
    waiting |= {name: "" for name in MODULES if name.startswith("fl_lightning.options.") and name.endswith(at_sites)}
    while waiting:
        name, why = waiting.popitem()
        seen[name] = why
        parents = {name.rsplit(".", above)[0] for above in range(1, name.count("."))}  # which run before it
        for other in (imports(MODULES[name]) | parents) & MODULES.keys() - seen.keys():
            waiting[other] = f"{why} > {name}"
    server = ("fl_lightning.server", "fl_lightning.flower.server")
    assert not {name: why for name, why in seen.items() if name.startswith(server)}
