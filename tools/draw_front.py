"""Draw the picture of the front page from the run table of Simulation 3: mean and standard deviation over its seeds.

python tools/draw_front.py > docs/diagrams/adafed_under_attack.svg
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

DOCS = Path(__file__).parents[1] / "docs"
TABLE = DOCS / "studies" / "adafed_simulation_3" / "table.csv.gz"
PANELS = {"none": "six clients", "two": "with two attackers"}
WIDTH, TOP, BOTTOM, LOWEST, HIGHEST, ROUNDS = 200, 40, 240, 30, 96, 20
COLOURS = {"FedAvg": "var(--fedavg)", "AdaFed": "var(--accent)"}

Curve = list[tuple[float, float]]


def curves(table: Path = TABLE) -> dict[tuple[str, str], Curve]:
    """Return the mean and standard deviation of the accuracy after each round, in percent, by attackers and algorithm."""
    found: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with gzip.open(table, "rt") as file:
        for row in csv.DictReader(file):
            if row["metric"] == "val_accuracy":
                found[row["attackers"], row["algorithm"]][int(row["round"])].append(100 * float(row["value"]))
    return {key: [(mean(values), stdev(values)) for _, values in sorted(rounds.items())] for key, rounds in found.items()}


def height(percent: float) -> float:
    """Return the vertical place of an accuracy in percent."""
    return BOTTOM - (BOTTOM - TOP) * (percent - LOWEST) / (HIGHEST - LOWEST)


def panel(left: int, title: str, lines: dict[str, Curve]) -> list[str]:
    """Return the elements of one panel."""

    def points(heights: list[float], backwards: bool = False) -> str:
        places = [f"{left + WIDTH * i / (ROUNDS - 1):.1f},{height(y):.1f}" for i, y in enumerate(heights)]
        return " ".join(reversed(places) if backwards else places)

    drawn = [f'<text class="name mid" x="{left + WIDTH / 2:g}" y="24">{title}</text>']
    for percent in range(LOWEST, HIGHEST, 20):
        y = height(percent)
        drawn.append(f'<path class="grid" d="M{left} {y:.1f}H{left + WIDTH}"/>')
        drawn.append(f'<text class="small end" x="{left - 6}" y="{y + 4:.1f}">{percent}</text>')
    for tick in (1, 10, 20):
        drawn.append(
            f'<text class="small mid" x="{left + WIDTH * (tick - 1) / (ROUNDS - 1):.1f}" y="{BOTTOM + 18}">{tick}</text>'
        )
    for name, curve in lines.items():
        low, high = [m - s for m, s in curve], [m + s for m, s in curve]
        drawn.append(
            f'<polygon class="band" style="fill: {COLOURS[name]}" points="{points(high)} {points(low, backwards=True)}"/>'
        )
        drawn.append(f'<polyline class="line" style="stroke: {COLOURS[name]}" points="{points([m for m, _ in curve])}"/>')
        y = height(curve[-1][0]) + (-12 if name == "AdaFed" else 20)
        drawn.append(f'<text class="end small" x="{left + WIDTH}" y="{y:.1f}">{name}</text>')
    return drawn


STYLE = """<style>
.fl-curves { color: var(--color-foreground-primary, #1f2328); --accent: var(--color-brand-primary, #0a58ca); --fedavg: #d55e00;
  font: 15px system-ui, sans-serif; width: 100%; max-width: 640px; height: auto; }
@media (prefers-color-scheme: dark) {
  .fl-curves { color: var(--color-foreground-primary, #e6edf3); --accent: var(--color-brand-primary, #6ea8fe); } }
.fl-curves text { fill: currentColor; }
.fl-curves .mid { text-anchor: middle; }
.fl-curves .end { text-anchor: end; }
.fl-curves .small { font-size: 13px; }
.fl-curves .name { font-weight: 600; }
.fl-curves .grid { stroke: currentColor; opacity: .2; }
.fl-curves .band { opacity: .2; }
.fl-curves .line { fill: none; stroke-width: 2.5; }
</style>"""


def picture() -> str:
    """Return the whole picture."""
    found = curves()
    drawn = [
        "<title>Validation accuracy in percent over rounds, AdaFed and FedAvg, without and with two attackers</title>",
        STYLE,
    ]
    for left, (attackers, title) in zip((34, 276), PANELS.items(), strict=True):
        drawn += panel(left, title, {name: found[attackers, name] for name in COLOURS})
    drawn.append(f'<text class="small mid" x="250" y="{BOTTOM + 38}">validation accuracy in percent over rounds</text>')
    size = 'viewBox="0 0 490 286" width="490" height="286"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" class="fl-curves" {size} role="img">', *drawn, "</svg>", ""])


if __name__ == "__main__":
    print(picture(), end="")
