"""Write the stubs that type checkers read, with the names that are imported on first use; with --check, only compare."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import fl_lightning  # noqa: E402
from fl_lightning import strategies  # noqa: E402

HEAD = '"""The public names, for type checkers. Written by tools/write_stub.py; ``__init__.py`` imports them on first use."""\n'
LIST = """
ALGORITHMS: dict[str, tuple[Algorithm, ...]]
STRATEGIES: tuple[Algorithm, ...]
__all__: list[str]
"""


def stubs() -> dict[Path, str]:
    """Return the text of each stub: an import for each part, of all its public names."""
    of_strategies: dict[str, list[str]] = {}
    for name, file in vars(strategies)["_HOME"].items():
        of_strategies.setdefault(file, []).append(name)
    parts = {part: names.split() for part, names in vars(fl_lightning)["_NAMES"].items()}
    return {
        Path("fl_lightning/__init__.pyi"): f"{HEAD}\n{_imports('', parts)}\n__version__: str\n__all__: list[str]\n",
        Path("fl_lightning/strategies/__init__.pyi"): (
            f"{HEAD}\nfrom typing import NamedTuple\n\n{_imports('.strategies', of_strategies)}\n"
            f"{inspect.getsource(strategies.Algorithm)}{LIST}"
        ),
    }


def _imports(package: str, names: dict[str, list[str]]) -> str:
    lines = ((part, ", ".join(f"{name} as {name}" for name in sorted(found))) for part, found in sorted(names.items()))
    return "".join(f"from fl_lightning{package}.{part} import {imported}\n" for part, imported in lines)


def main() -> int:
    """Write the stubs, or say that one is out of date."""
    wrong = [path for path, text in stubs().items() if not (ROOT / path).is_file() or (ROOT / path).read_text("utf-8") != text]
    if "--check" in sys.argv and wrong:
        print(f"{wrong[0]} lacks a public name of its __init__.py, or has one too many. Run: python {Path(sys.argv[0])}")
        return 1
    for path in wrong:
        (ROOT / path).write_text(stubs()[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
