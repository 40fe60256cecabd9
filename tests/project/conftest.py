from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("project")
