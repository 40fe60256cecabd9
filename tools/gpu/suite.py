"""The tests of the suite that need a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from gpu.setting import ROOT, Findings, Setting

_MARK = "torch.cuda.is_available()"


def suite(setting: Setting, found: Findings) -> None:
    """Run them with pytest, and count; without a GPU they are collected and skipped."""
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if _MARK in path.read_text()]
    found["files"] = [Path(path).name for path in files]
    report = Path("suite.xml").resolve()
    command = [
        sys.executable,
        "-m",
        "pytest",
        *files,
        "-k",
        "gpu",
        "--timeout=120",
        f"--junitxml={report}",
        "--basetemp=pytest",
    ]
    command += ["-p", "no:cacheprovider", f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml")]
    if not setting.small and importlib.util.find_spec("xdist"):
        command += ["--numprocesses=4"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")])
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if not report.exists():
        found.require(False, f"pytest wrote no report: {(done.stdout + done.stderr)[-800:]}")
        return
    count_tests(report.read_text(), found)
    if not setting.small:
        found.require(found.figures["passed"] > 0, "no test ran")
        found.require(found.figures["skipped"] == 0, "tests were skipped")


def count_tests(report: str, found: Findings) -> None:
    """Take passed, skipped and failed tests, and the messages of those that failed, out of a JUnit report."""
    cases = list(ET.fromstring(report).iter("testcase"))
    kinds = {"failed": ("failure", "error"), "skipped": ("skipped",)}
    having = {kind: [case for case in cases if any(case.find(tag) is not None for tag in tags)] for kind, tags in kinds.items()}
    found["passed"] = len(cases) - len(having["failed"]) - len(having["skipped"])
    found["skipped"], found["failed"] = len(having["skipped"]), len(having["failed"])
    found["slowest"] = {
        case.get("name"): round(float(case.get("time", 0)), 1)
        for case in sorted(cases, key=lambda case: -float(case.get("time", 0)))[:5]
    }
    messages = {}
    for case in having["failed"]:
        node = case.find("failure") if case.find("failure") is not None else case.find("error")
        messages[str(case.get("name"))] = str(node.get("message", ""))[:300] if node is not None else ""
    found["messages"] = messages
    found.require(not having["failed"], f"{len(having['failed'])} tests failed: {', '.join(messages)}")
