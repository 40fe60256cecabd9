"""Processes of their own, for what only they can show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("run_federation.py")


def launch(arguments: list[str], limit: int, folder: Path, expect: int = 0) -> str:
    """Run Python and give what it wrote to stderr; a process group that hangs is killed, not waited for."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    process = subprocess.Popen(command, env=env, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _, stderr = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == expect, stderr
    return stderr
