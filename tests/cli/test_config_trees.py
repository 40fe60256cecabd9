"""Configurations resolve to the same settings as before: with their bases, on top of each other, and over two bases.

After a change of a configuration, write the digests again: python tests/cli/test_config_trees.py --write
"""

import functools
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from fl_lightning import ConfigurationError
from fl_lightning.config import files
from fl_lightning.config.files import BASE, find, in_order, names, read

NAMES = names()
DIGESTS = Path(__file__).parents[1] / "baseline" / "configs.json"
LAYERS = [name for name in NAMES if name.startswith(("data/", "speed/"))]
TOP = [name for name in NAMES if "/" not in name]
OWN = {
    "data_then_speed": {BASE: ["data/label_skew", "speed/fabric"], "trainer": {"max_epochs": 3}},
    "speed_then_data": {BASE: ["speed/fabric", "data/iid"], "trainer": {"max_epochs": 3}},
    "algorithm_then_data": {BASE: ["fednova_mnist", "data/label_skew"], "federation": {"seed": 3}},
    "data_then_algorithm": {BASE: ["data/label_skew", "fednova_mnist"], "federation": {"seed": 3}},
    "task_then_data": {BASE: ["resnet18_cifar10", "data/shards"], "model": {"init_args": {"num_classes": 10}}},
    "task_then_algorithm": {BASE: ["cell_counting", "fedprox_mnist"]},
    "own_then_data": {BASE: ["algorithm_then_data.yaml", "data/shards"], "federation": {"seed": 4}},
}
"""Files over two bases; the last one is over another of them."""


once = functools.cache(read)


@functools.cache
def content(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def ordered(given: Sequence[str]) -> list[Path]:
    """Return the files that the command line loads, in their order."""
    with patch.multiple(files, read=once, names=lambda: NAMES):
        found: list[Path] = []
        for name in given:
            found += in_order(name, found)
    return found


def merged(below: Any, above: Any) -> Any:
    """Return two trees as one; a class replaces another one with its settings, and lists are replaced."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    if above.get("class_path", below.get("class_path")) != below.get("class_path"):
        below = {}
    return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}


def tree(paths: Sequence[Path]) -> Any:
    found: Any = {}
    for path in paths:
        found = merged(found, content(path.resolve()))
    return {key: value for key, value in found.items() if key != BASE}


def digest(given: Sequence[str]) -> str:
    """Return a short hash of the settings that these files make together; '-' where the command line refuses them."""
    try:
        found = ordered(given)
    except ConfigurationError:
        return "-"
    return hashlib.sha256(json.dumps(tree(found), sort_keys=True, default=str).encode()).hexdigest()[:6]


def study(name: str) -> str:
    return hashlib.sha256(json.dumps(tree([find(name)]), sort_keys=True, default=str).encode()).hexdigest()[:6]


def on_top(name: str) -> str:
    """Return the digests of a configuration below each layer, and above it."""
    return " ".join(f"{digest([name, layer])}{digest([layer, name])}" for layer in LAYERS)


def write_own() -> None:
    for name, settings in OWN.items():
        Path(f"{name}.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")


def everything() -> dict[str, Any]:
    return {
        "alone": {name: study(name) if name.startswith("studies/") else digest([name]) for name in NAMES},
        "own": {name: digest([name]) for name in OWN},
        "layers": " ".join(LAYERS),
        "with each layer above, then below": {name: on_top(name) for name in TOP},
    }


def test_everything_resolves_as_before():
    write_own()
    assert everything() == json.loads(DIGESTS.read_text())


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    import os
    import tempfile

    target = DIGESTS.resolve()
    os.chdir(tempfile.mkdtemp())
    write_own()
    target.write_text(json.dumps(everything(), indent=1) + "\n", encoding="utf-8")
