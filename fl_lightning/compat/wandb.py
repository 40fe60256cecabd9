"""Private names of Weights & Biases."""

from __future__ import annotations

import json
from typing import Any


def workspace_specification(workspace: Any) -> dict[str, Any]:
    """Return what a workspace sends to W&B, which wandb-workspaces can only send.

    Args:
        workspace: a ``wandb_workspaces.workspaces.Workspace``.
    """
    specification: dict[str, Any] = json.loads(workspace._to_model().model_dump_json(by_alias=True, exclude_none=True))
    return specification
