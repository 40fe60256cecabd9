"""The checks of tools/gpu_checks.py. They train the small federations of the tests and the workloads of the benchmark."""

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
for _folder in (_ROOT / "tests" / "support", _ROOT / "tools", _ROOT):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))
