"""The checks for a GPU, tried out on a CPU: what they find, what they write, and that nothing stops them."""

import json
from pathlib import Path

from gpu import conductor, stages

ROOT = Path(__file__).parents[2]


def test_every_check_is_a_function():
    names = [check.name for checks in stages.STAGES.values() for check in checks]
    assert len(names) == len(set(names))
    for name in names:
        module, _, function = stages.find(name).function.partition(":")
        assert f"\ndef {function}(setting: Setting, found: Findings) -> None:" in (ROOT / f"tools/gpu/{module}.py").read_text()


def test_every_measurement_is_a_check():
    from benchmark_gpu import PROFILES, ROWS

    names = {check.name for check in stages.STAGES["speed"]}
    assert names == {"speed environment", "side_by_side", *ROWS, *(f"profile: {name}" for name in PROFILES)}


# ---------------------------------------------------------------- processes that die and time that ends

SCRIPT = """
import json, os, sys, time
for line in sys.stdin:
    name = line.strip()
    if name == "lora": os._exit(3)
    if name == "images": time.sleep(60)
    figures = {"process": os.getpid()}
    print(json.dumps({"name": name, "ok": True, "seconds": 0.1, "figures": figures, "error": None}), flush=True)
"""


def conducted(tmp_path, monkeypatch, names, minutes=1.0, **changed) -> list[dict]:
    script = tmp_path / "worker.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(conductor, "SCRIPT", script)
    monkeypatch.setattr(conductor, "_LEAST", 0.5)
    checks = [stages.Check("correctness", name, "", changed.get("limit", 20.0)) for name in names]
    journal = conductor.Journal(tmp_path / "out" / "gpu.jsonl", "cpu")
    settings = {"device": "cpu", "mnist": None, "log": tmp_path / "log", "environment": {}}
    conductor.conduct(checks, journal, minutes, changed.get("jobs", 1), **settings)
    return [json.loads(line) for line in journal.path.read_text().splitlines()]


def test_a_process_that_dies_is_replaced_and_a_check_that_hangs_is_stopped(tmp_path, monkeypatch):
    records = conducted(tmp_path, monkeypatch, ["suite", "lora", "proximal", "images", "augmentation"], limit=3.0)
    assert [record["ok"] for record in records] == [True, False, True, False, True]
    assert "ended with status 3" in records[1]["error"]
    assert "stopped after 3 s" in records[3]["error"]
    processes = [record["figures"].get("process") for record in records]
    assert processes[0] != processes[2]


def test_checks_are_left_when_time_is_up(tmp_path, monkeypatch):
    records = conducted(tmp_path, monkeypatch, ["suite", "images", "lora"], minutes=0.1)
    assert [record["ok"] for record in records] == [True, None, None]
    assert "time was up after" in records[1]["error"]
    assert "no time was left" in records[2]["error"]
