"""Every mistake that a user can make ends in one message: what is wrong, the value, the fix."""

from importlib import import_module
from pathlib import Path

import pytest
from refusing import Refusal, holds

TABLES = sorted(path.stem for path in (Path(__file__).parent / "refusals").glob("*_refusals.py"))
SLOW = {"flower_refusals"}  # most of its rows start sites
ROWS = [
    pytest.param(row, id=f"{name.removesuffix('_refusals')}: {row.words}", marks=[pytest.mark.slow] if name in SLOW else [])
    for name in TABLES
    for row in import_module(name).REFUSALS
]


@pytest.mark.parametrize("row", ROWS)
def test_a_mistake_is_refused_with_its_remedy(row: Refusal) -> None:
    with pytest.raises(row.error) as caught:
        row.call()
    assert holds(str(caught.value), row.words), str(caught.value)
