"""Mutated configurations: each must be refused in one message, or be a run that is really valid.

    python tools/fuzz_configurations.py --cases 500 --seed 0

takes a configuration of configs/ with all its defaults, small and on embedded digits, and spoils one to three places of
it: wrong types, missing and extra keys, absurd numbers, wrong class paths. Each runs in a process of its own. A case fails
where there is a traceback, a signal, exit status 0 without a run, or files after a refusal. Failing cases are kept as YAML
beside what they printed. Needs Linux.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import random
import resource
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests" / "support"))

from command_line import ADAFED, SMALL  # noqa: E402

from fl_lightning.cli import federation_cli as command  # noqa: E402

WRONG = (
    *(None, "", "x", "1e400", "null", [], {}, [1, "a"], {"class_path": "x"}, {"class_path": "FedAvg"}, True, "🦆"),
    *(-1, 0, 1, 7, 10**9, 10**30, -0.5, 0.5, 1e-300, 1e300, float("nan"), float("inf")),
    *("../../etc/passwd", "os.system", "builtins.print", {"class_path": "os.system", "init_args": {"command": "false"}}),
)
LIMIT_S, MEMORY = 25, 6 * 2**30


def fit(folder: Path, *arguments: str) -> tuple[int | None, str]:
    """The exit status (negative for a signal, None if it ran out of time) of a fit in a folder, and what it printed."""
    process = multiprocessing.get_context("fork").Process(target=_typed, args=(folder, arguments))
    process.start()
    process.join(LIMIT_S)
    status = process.exitcode
    process.kill()
    return status, (folder / "log.txt").read_text(encoding="utf-8", errors="replace")


def _typed(folder: Path, arguments: Sequence[str]) -> None:
    """In a process of its own, which has imported everything already."""
    os.setsid()
    os.chdir(folder)
    sink = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.argv = ["fl-lightning", "fit", *arguments]
    command.main()


@cache
def whole(overlay: Path, folder: Path) -> dict[str, Any]:
    """A small configuration with every setting."""
    small = [*SMALL, "--trainer.logger=false", "--trainer.max_epochs=1", "--print_config"]
    text = fit(folder, f"--config={ADAFED}", f"--config={overlay}", *small)[1]
    found: dict[str, Any] = yaml.safe_load(text[text.index("# lightning") :])
    return found


def places(config: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value, of those inside, too."""
    found = [before] if before else []
    items = config.items() if isinstance(config, dict) else enumerate(config) if isinstance(config, list) else ()
    for key, value in items:
        found += places(value, (*before, key))
    return found


def spoil(config: dict[str, Any], draw: random.Random) -> str:
    """Change one place, and say which."""
    found = places(config)
    section = draw.choice(sorted({path[:2] for path in found}))  # otherwise long tables would get most of it
    path = draw.choice([path for path in found if path[:2] == section])
    owner: Any = config
    for key in path[:-1]:
        owner = owner[key]
    name, key = ".".join(map(str, path)), path[-1]
    kind = draw.choice(("value", "value", "value", "missing", "extra", "renamed", "scaled"))
    if kind == "scaled" and isinstance(owner[key], int | float) and not isinstance(owner[key], bool):
        owner[key] = owner[key] * draw.choice((-1, 0, 1000, 1e12, 0.1))
    elif kind == "extra" and isinstance(owner, dict):
        key = draw.choice(("colour", "x", "seed", "init_args", "class_path", "1"))
        owner[key] = draw.choice(WRONG)
        return f"beside {name}: {key} = {owner[key]!r}"
    elif kind == "renamed" and isinstance(owner, dict):
        owner[str(key) + draw.choice(("s", "_", "x"))] = owner.pop(key)
        return f"{name} renamed"
    elif kind == "missing":
        owner.pop(key)
        return f"{name} missing"
    else:
        owner[key] = draw.choice(WRONG)
    return f"{name} = {owner[key]!r}"


def verdict(status: int | None, text: str, folder: Path) -> str:
    """What became of a case; those that begin with FAILED are bugs."""
    left = [path for path in folder.rglob("*") if path.name not in ("log.txt", "config.yaml.mutated")]
    trained = any(told in text for told in ("Rounds: ", "Epochs on the examples", "nothing was saved"))
    if "Traceback (most recent call last)" in text:
        return "FAILED: a traceback"
    if status is None:
        return "still training" if "Modules in" in text or any(left) or "GPU available" in text else "FAILED: hangs"
    if status < 0:
        return f"FAILED: ended with {status}"
    if status == 0:
        return "valid" if trained else "FAILED: status 0, but no run"
    if any(path.is_file() for path in left):
        return "FAILED: refused, but left files"
    return "refused" if "error: " in text else "FAILED: refused without a message"


def main() -> None:
    """Run the cases, print what became of them; exit status 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"), help="an empty folder for the cases that fail")
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True)
    found = {path for kind in ("*_mnist", "attacks/*", "speed/*", "data/*") for path in (ROOT / "configs").glob(f"{kind}.yaml")}
    overlays = sorted(path for path in found if path.stem not in ("cells", "table"))  # other data: SMALL does not fit them
    counts: Counter[str] = Counter()
    for case in range(args.cases):
        draw = random.Random(f"{args.seed} {case}")
        config = copy.deepcopy(whole(draw.choice(overlays), out))
        changes = [spoil(config, draw) for _ in range(draw.randint(1, 3))]
        folder = out / f"{args.seed}-{case}"
        folder.mkdir()
        path = folder / "config.yaml.mutated"
        path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
        status, text = fit(folder, f"--config={path}")
        became = verdict(status, text, folder)
        counts[became] += 1
        last = (text.strip().splitlines() or [""])[-1]
        print(f"{case}: {became}: {'; '.join(changes)}\n    {last}", flush=True)
        if not became.startswith("FAILED"):
            shutil.rmtree(folder)
    for became, count in counts.most_common():
        print(f"{count:5d} {became}")
    sys.exit(any(became.startswith("FAILED") for became in counts))


if __name__ == "__main__":
    main()
