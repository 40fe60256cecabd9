"""What a table says of its runs beside their metrics: the partition, the sets that metrics are measured on, baselines.

A fact is a metric ``study/<kind>/<text>`` of value 1, so that a report can be written from the table alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fl_lightning.functional.digest import digest
from fl_lightning.studies.names import class_name, partition_in_words
from fl_lightning.studies.run_table import RunTable, Setting

METRIC = "val_accuracy"
"""The metric by which runs are compared if neither their study nor their best checkpoint names one."""
CENTRALIZED, LOCAL_ONLY, LAST_CLIENT = "centralized", "local only", "last client"
_NOT_CONTENT = ("batch_size", "eval_batch_size", "num_workers", "seed", "root", "data_dir", "download", "pin_memory")
"""Settings of a datamodule that do not change which examples its validation set has for a given seed."""
_LONGEST = 60
_CODE = "# fl_lightning=="


def facts(config: Any, measured: tuple[str, str] | None = None) -> Iterator[str]:
    """Yield the metrics by which a table names the facts of a run.

    Args:
        config: its whole configuration, as the parser returns it.
        measured: the metric by which runs are compared and its mode, if not those of the best checkpoint.
    """
    partition = partition_in_words(_mapping(config.data.partitioner))
    yield f"study/partition/{partition}"
    share, held = config.data.client_test, config.data.client_validation + config.data.client_test + config.data.public_share
    parts = f"the clients' own test parts ({100 * share:g} % each; {partition})"
    yield f"study/training/{100 * (1 - held):g} %"
    if share:
        yield f"study/client_set/{parts}"
    best = config.best_checkpoint
    monitor, mode = measured or (best.monitor, best.mode)
    if monitor != METRIC:
        yield from (f"study/{kind}/{text}" for kind, text in (("metric", monitor), ("mode", mode)) if text)
    federation = config.federation
    if federation.enabled and federation.personal:
        yield f"study/server_set/{parts}, each with its client's complete model"
    elif config.data.server_set == "clients":
        yield f"study/server_set/{parts}, together{_batches(config)}"
    else:
        yield f"study/server_set/the validation set of {_datamodule(config.data.datamodule)}{_batches(config)}"
    reference = _reference(federation)
    if reference:
        yield f"study/reference/{reference}"


def code_of(folder: Path) -> Iterator[str]:
    """Yield the fact of which code a run ran with, from the first line of its ``config.yaml``, if it has one."""
    path = folder / "config.yaml"
    first = path.read_text(encoding="utf-8").partition("\n")[0] if path.exists() else ""
    if first.startswith(_CODE):
        yield f"study/code/{first.removeprefix(_CODE)}"


def codes(table: RunTable) -> dict[str, int]:
    """Return the number of runs of a table by the code that they ran with; tables of earlier releases do not know it."""
    found: dict[str, int] = {}
    for name in table.families("study"):
        kind, _, code = name.partition("/")
        if kind == "code":
            found[code] = sum(len(table.curves(setting, f"study/{name}")) for setting in table.settings)
    return found


def _mapping(part: Any) -> dict[str, Any] | None:
    if part is None:
        return None
    return dict(part.as_dict()) if hasattr(part, "as_dict") else dict(part)


def _batches(config: Any) -> str:
    limit = config.trainer.limit_val_batches
    return "" if limit in (None, 1.0) or (isinstance(limit, int) and limit <= 0) else f", limited to {limit} batches"


def _datamodule(part: Any) -> str:
    own = _mapping(part) or {}
    name = class_name(own) if own else "the clients' datamodules"
    content = {
        key: x
        for key, x in (own.get("init_args") or {}).items()
        if key not in _NOT_CONTENT and x is not None and x is not False and x != 0
    }
    text = ", ".join(f"{key} {x}" for key, x in content.items())
    if len(text) > _LONGEST:
        text = f"settings {digest(text)[:8]}"
    return f"{name} ({text})" if text else name


def _reference(federation: Any) -> str | None:
    if not federation.enabled:
        return CENTRALIZED
    kinds = {"LocalOnly": LOCAL_ONLY, "LastClient": LAST_CLIENT}
    used = [class_name(own) for part in (federation.route, federation.strategy) if (own := _mapping(part))]
    return next((kinds[name] for name in used if name in kinds), None)


def facts_of(table: RunTable) -> dict[Setting, dict[str, str]]:
    """Return the facts of each setting by kind: ``partition``, ``training``, ``server_set``, ``client_set``, ``reference``,
    ``metric`` and ``mode``."""
    found: dict[Setting, dict[str, str]] = {setting: {} for setting in table.settings}
    for name in table.families("study"):
        kind, _, text = name.partition("/")
        for setting, own in found.items():
            if table.curves(setting, f"study/{name}"):
                own[kind] = text
    return found
