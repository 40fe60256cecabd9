"""Write fl_lightning/__init__.pyi, which type checkers read, from the names in __init__.py; with --check, only compare."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "fl_lightning"
HEAD = '"""The public names, for type checkers. Written by tools/write_stub.py; ``__init__.py`` imports them on first use."""\n'


def stub() -> str:
    """Return an import for each subpackage, of all its public names."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    table = next(node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NAMES")
    lines = [HEAD]
    for part, names in sorted(ast.literal_eval(table.value).items()):
        imported = ", ".join(f"{name} as {name}" for name in names.split())
        lines.append(f"from fl_lightning.{part} import {imported}\n")
    return "\n".join([lines[0], "".join(lines[1:]), "__version__: str\n__all__: list[str]\n"])


def main() -> int:
    """Write the stub, or say that it is out of date."""
    path = PACKAGE / "__init__.pyi"
    if "--check" not in sys.argv:
        path.write_text(stub(), encoding="utf-8")
    elif path.read_text(encoding="utf-8") != stub():
        print(f"{path.name} lacks a public name of __init__.py, or has one too many. Run: python {Path(sys.argv[0])}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
