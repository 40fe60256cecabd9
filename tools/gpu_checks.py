"""Check the package on a GPU, and write down what was found, one line of JSON after each check.

    python tools/gpu_checks.py correctness --out gpu.jsonl --minutes 8
    python tools/gpu_checks.py speed --out gpu.jsonl --minutes 8
    python tools/gpu_checks.py compile --out gpu.jsonl --minutes 8
    python tools/gpu_checks.py all --out gpu.jsonl --minutes 9        # the three in turn, within 9 minutes together
    python tools/gpu_checks.py correctness --out dry.jsonl --device cpu   # the same on little data
    python tools/gpu_checks.py report gpu.jsonl                       # Markdown of what is in the file
    python tools/gpu_checks.py list

Each check runs in a process that is replaced if it dies, hangs or loses its GPU; a failure does not stop the others. What
checks print goes to a log beside the file. ``tools/gpu.sh`` does everything on a machine without a network. Exit status 1 if
a check failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from gpu.conductor import Journal, conduct
from gpu.setting import ROOT
from gpu.stages import STAGES, Check

_SHARES = {"correctness": 0.42, "speed": 0.36, "compile": 0.22}
"""Of the time that ``all`` has; what a stage leaves, the next ones get."""


def chosen(stage: str, only: list[str] | None, without: list[str]) -> list[Check]:
    """Return the checks of a stage that were asked for."""
    return [check for check in STAGES[stage] if (not only or check.name in only) and check.name not in without]


def run(args: argparse.Namespace) -> int:
    """Run one stage, or all of them."""
    stages = list(STAGES) if args.what == "all" else [args.what]
    known = {check.name for stage in stages for check in STAGES[stage]}
    unknown = {*(args.only or ()), *args.without} - known
    if unknown:
        print(f"No such check: {', '.join(sorted(unknown))}. See: python tools/gpu_checks.py list", file=sys.stderr)
        return 2
    out = args.out.resolve()
    journal = Journal(out, args.device)
    left, shares = args.minutes, sum(_SHARES[stage] for stage in stages)
    for stage in stages:
        minutes = left * _SHARES[stage] / shares
        begun = time.monotonic()
        path = [str(ROOT), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")]
        environment = {"WANDB_MODE": "disabled", "PYTHONPATH": os.pathsep.join(part for part in path if part)}
        if stage == "correctness":  # cuBLAS is reproducible only with a workspace that it does not choose itself
            environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        if args.device == "cpu":
            environment["OMP_NUM_THREADS"] = "1"
        worker = {"device": args.device, "mnist": args.mnist, "log": out.with_suffix(".log"), "environment": environment}
        conduct(chosen(stage, args.only, args.without), journal, minutes, args.jobs, **worker)
        left, shares = left - (time.monotonic() - begun) / 60, shares - _SHARES[stage]
    return int(journal.failed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*STAGES, "all", "report", "list", "worker"])
    parser.add_argument("records", nargs="*", type=Path, help="of 'report': files of records")
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"), help="records are appended to this file")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="'cpu' runs the checks on little data")
    parser.add_argument("--minutes", type=float, default=8.0, help="checks that are left then are written down as not run")
    parser.add_argument("--mnist", help="a folder with MNIST/raw; otherwise the embedded digits")
    parser.add_argument("--jobs", type=int, default=1, help="checks side by side; measurements always run alone")
    parser.add_argument("--only", nargs="+", metavar="CHECK", help="only these checks")
    parser.add_argument("--without", nargs="+", metavar="CHECK", default=[], help="all but these checks")
    args = parser.parse_args()
    if args.what == "list":
        print("\n".join(f"{stage}: {check.name} (at most {check.limit:.0f} s)" for stage in STAGES for check in STAGES[stage]))
        return 0
    if args.what == "report":
        from gpu.report import markdown, read

        print(markdown(read(args.records or [args.out])))
        return 0
    if args.what == "worker":
        from gpu.worker import serve

        serve(args.device, args.mnist)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
