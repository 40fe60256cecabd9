"""Draw what W&B shows of an offline run: a panel for each key, in a section for each prefix; makes docs/wandb.png.

fl-lightning fit --config adafed_mnist --model.network LeNet --data.datamodule.source embedded --data.datamodule.batch_size 20 \
    --federation.local.engine fabric --federation.local.max_epochs 2 --trainer.max_epochs 15
python tools/draw_wandb.py docs/wandb.png runs/adafed_mnist/wandb/offline-run-*/run-*.wandb
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from wandb_file import charts, declared_axes, history, panels

SHOWN = 5
"""Panels that are drawn of a section."""
SECTIONS = ("Charts", "by_megabytes", "by_client", "val_f1", "class_weight", "federation")
Lines = list[tuple[str, list[tuple[float, float]]]]
"""The lines of a panel by name; a metric has a single line without a name."""


def curves(paths: list[Path]) -> dict[str, dict[str, Lines]]:
    """Return the lines of each key by section, over the axis that the run declares for it, and the run's own charts.

    Args:
        paths: the parts of a run, in order; a resumed run has several.
    """
    axes = {name: axis for path in paths for name, axis in declared_axes(path).items()}
    keys = {key for path in paths for section in panels(path).values() for key in section}
    found: dict[str, dict[str, Lines]] = {}
    for row in (row for path in paths for row in history(path)):
        for key, value in row.items():
            section, slash, _ = key.partition("/")
            axis = axes.get(key) or axes.get(f"{section}/*") or "round"
            if key in keys and axis in row and key != axis:
                panel = found.setdefault(section if slash else "Charts", {}).setdefault(key, [("", [])])
                panel[0][1].append((row[axis], value))
    for key, lines in charts(paths[-1]).items():  # the last part has all rounds
        found.setdefault(key.partition("/")[0], {})[key] = list(lines.items())
    return found


def draw(paths: list[Path], target: Path) -> None:
    """Draw the first panels of each section."""
    found = curves(paths)
    figure = Figure(figsize=(2.6 * SHOWN, 1.9 * len(SECTIONS)), layout="constrained")
    for part, section in zip(figure.subfigures(len(SECTIONS), 1), SECTIONS, strict=True):
        drawn = found[section]
        part.suptitle(f"{section}  ({len(drawn)} panels)", x=0.01, ha="left", fontweight="bold", fontsize="medium")
        part.set_facecolor("#f4f5f7")
        for axis, key in zip(
            part.subplots(1, SHOWN), [*sorted(drawn, reverse=section == "Charts"), *[""] * SHOWN], strict=False
        ):
            axis.set_visible(bool(key))
            if key:
                for name, points in drawn[key]:
                    axis.plot(*zip(*points, strict=True), color=None if name else "#2a9d8f", linewidth=1.4, label=name)
                if drawn[key][0][0]:
                    axis.legend(fontsize=5, ncols=2)
                axis.set_title(key, fontsize="small")
                axis.tick_params(labelsize="x-small")
                axis.grid(alpha=0.3, linewidth=0.5)
    figure.savefig(target, dpi=80, metadata={"Software": None})


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(f"usage: python {sys.argv[0]} PICTURE.png RUN.wandb ...")
    draw([Path(name) for name in sys.argv[2:]], Path(sys.argv[1]))
