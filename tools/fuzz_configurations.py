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
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
SMALL: dict[str, Any] = {
    "trainer": {
        "max_epochs": 1,
        "logger": False,
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "limit_val_batches": 1,
    },
    "model": {"init_args": {"network": "LeNet"}},
    "data": {"datamodule": {"init_args": {"source": "embedded", "batch_size": 10, "eval_batch_size": 100}}},
    "federation": {"local": {"max_epochs": 1, "limit_train_batches": 1}},
    "federation_report": {"partition": False},
}
WRONG = (
    *(None, "", "x", "1e400", "null", [], {}, [1, "a"], {"class_path": "x"}, {"class_path": "FedAvg"}, True, "🦆"),
    *(-1, 0, 1, 7, 10**9, 10**30, -0.5, 0.5, 1e-300, 1e300, float("nan"), float("inf")),
    *("../../etc/passwd", "os.system", "builtins.print", {"class_path": "os.system", "init_args": {"command": "false"}}),
)
LIMIT_S, MEMORY = 25, 6 * 2**30


def whole(overlay: Path) -> dict[str, Any]:
    """A configuration with every setting, as ``--print_config`` shows it."""
    from fl_lightning.studies.grid import Run
    from fl_lightning.studies.settings import SettingsReader

    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small.yaml"
        small.write_text(yaml.safe_dump(SMALL, sort_keys=False))
        files = tuple(map(str, (ROOT / "configs" / "adafed_mnist.yaml", overlay, small)))
        reader = SettingsReader()
        found: dict[str, Any] = yaml.safe_load(reader.text(reader.read(Run((), 0, "case", files, ()))))
    return found


def places(config: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value, of those inside, too."""
    found = [before] if before else []
    items = config.items() if isinstance(config, dict) else enumerate(config) if isinstance(config, list) else ()
    for key, value in items:
        found += places(value, (*before, key))
    return found


def spoil(config: dict[str, Any], draw: random.Random) -> tuple[dict[str, Any], str]:
    """One change, and what it was."""
    result = copy.deepcopy(config)
    found = places(result)
    section = draw.choice(sorted({path[:2] for path in found}))  # else long tables would get most of it
    path = draw.choice([path for path in found if path[:2] == section])
    owner: Any = result
    for key in path[:-1]:
        owner = owner[key]
    name, key = ".".join(map(str, path)), path[-1]
    kind = draw.choice(("value", "value", "value", "missing", "extra", "renamed", "scaled"))
    if kind == "value":
        owner[key] = draw.choice(WRONG)
        return result, f"{name} = {owner[key]!r}"
    if kind == "scaled" and isinstance(owner[key], int | float) and not isinstance(owner[key], bool):
        owner[key] = owner[key] * draw.choice((-1, 0, 1000, 1e12, 0.1))
        return result, f"{name} = {owner[key]!r}"
    if kind == "extra" and isinstance(owner, dict):
        owner[draw.choice(("colour", "x", "seed", "init_args", "class_path", "1"))] = draw.choice(WRONG)
        return result, f"beside {name}: {list(owner)[-1]} = {list(owner.values())[-1]!r}"
    value = owner.pop(key)
    if kind == "renamed" and isinstance(owner, dict):
        owner[str(key) + draw.choice(("s", "_", "x"))] = value
        return result, f"{name} renamed"
    return result, f"{name} missing"


def run(config: Path, folder: Path) -> tuple[int | None, str]:
    """Fit it in a forked process: exit status (negative for a signal, None if it ran out of time) and what it printed."""
    log = folder / "log.txt"
    process = os.fork()
    if process == 0:
        os.setsid()
        os.chdir(folder)
        sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        status = 70
        try:
            from fl_lightning.cli.federation_cli import main

            sys.argv = ["fl-lightning", "fit", f"--config={config}"]
            main()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1 if end.code else 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    limit = time.monotonic() + LIMIT_S
    while time.monotonic() < limit:
        done, code = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(code), log.read_text(errors="replace")
        time.sleep(0.02)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None, log.read_text(errors="replace")


def verdict(status: int | None, text: str, folder: Path) -> str:
    """What became of a case; those that begin with FAILED are bugs."""
    left = [path for path in folder.rglob("*") if path.name not in ("log.txt", "config.yaml.mutated")]
    trained = any(told in text for told in ("Rounds: ", "Epochs on the examples", "nothing was saved"))
    if "Traceback (most recent call last)" in text:
        return "FAILED: a traceback"
    if status is None:
        return "still training" if "Modules in" in text or any(left) or "GPU available" in text else "FAILED: hangs"
    if status < 0 or status == 70:
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
    parser.add_argument("--only", type=int, default=None, help="a single case, with what it prints")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"))
    args = parser.parse_args()
    import fl_lightning.cli.federation_cli  # noqa: F401  once for all children

    configs = ROOT / "configs"
    found = {path for kind in ("*_mnist", "attacks/*", "speed/*", "data/*") for path in configs.glob(f"{kind}.yaml")}
    overlays = sorted(path for path in found if path.stem not in ("cells", "table"))  # other data: SMALL does not fit them
    counts: Counter[str] = Counter()
    for case in range(args.cases) if args.only is None else [args.only]:
        draw = random.Random(f"{args.seed} {case}")
        config = whole(draw.choice(overlays))
        changes = []
        for _ in range(draw.randint(1, 3)):
            config, change = spoil(config, draw)
            changes.append(change)
        folder = args.out.resolve() / f"{args.seed}-{case}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        path = folder / "config.yaml.mutated"
        path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
        status, text = run(path, folder)
        became = verdict(status, text, folder)
        counts[became] += 1
        if became.startswith("FAILED") or args.only is not None:
            last = (text.strip().splitlines() or [""])[-1]
            print(f"{case}: {became}: {'; '.join(changes)}\n    {last}", flush=True)
        else:
            shutil.rmtree(folder)
    for became, count in counts.most_common():
        print(f"{count:5d} {became}")
    sys.exit(any(became.startswith("FAILED") for became in counts))


if __name__ == "__main__":
    main()
