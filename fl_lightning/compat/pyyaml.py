"""YAML by libyaml, where PyYAML was built with it: it takes a tenth of the time."""

from __future__ import annotations

from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def load(text: str) -> Any:
    """Return the plain values in a text."""
    return yaml.load(text, LOADER)


def dump(values: Any) -> str:
    """Return plain values as a text to load again; its lines may be folded elsewhere than in a file of jsonargparse."""
    return str(yaml.dump(values, Dumper=_DUMPER, default_flow_style=False, allow_unicode=True, sort_keys=False))
