"""Small tables and their schemas, and what a user brings to the configurations of tables and cells."""

from pathlib import Path
from typing import Any

import numpy as np
from command_line import ROOT
from launching import launch

from fl_lightning import TableDataModule

AGE = "name: age, type: number, constraints: {minimum: 0, maximum: 120}"
SEX = "name: sex, type: string, constraints: {enum: [male, female]}"
OUTCOME = "name: outcome, type: string, constraints: {enum: [healthy, cancer]}"


def write(path: Path | str, *lines: str) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("\n".join(lines) + "\n")
    return str(path)


def set_up(path: Any, **settings: Any) -> TableDataModule:
    data = TableDataModule(path, **settings)
    data.setup("fit")
    return data


def small(*fields: str, target: str = "", more: str = "") -> str:
    """Write a schema of a few fields."""
    lines = [f"  - {{{field}}}" for field in fields]
    Path("small.yaml").write_text("\n".join(["fields:", *lines, f"target: {target}" if target else "", more, ""]))
    return "small.yaml"


def numbers(rows: int, seed: int = 0) -> np.ndarray:
    """Features of other sizes and signs, one of them constant, and a target."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.normal(-500, 20, rows), rng.normal(0, 1e-3, rows), np.full(rows, 0.1), rng.normal(7, 3, rows)], 1)


def lines(values: np.ndarray) -> list[str]:
    return [",".join(repr(float(value)) for value in row) for row in values]


def bring_data(name: str) -> None:
    """What a user brings: a folder of images with dots, or a table."""
    if name == "cells":
        tool = [str(ROOT / "tools" / "simulate_cells.py"), "--out=data/cells", "--images=5", "--image_size=40"]
        launch(tool, 120, Path.cwd())
    if name == "hospital_tables":
        from three_hospitals import SCHEMA, clean

        write("data/schema.yaml", SCHEMA)
        Path("data/hospitals").mkdir()
        for hospital, rows in clean().groupby("hospital"):
            rows.drop(columns="hospital").to_csv(f"data/hospitals/{hospital}.csv", index=False)
    if name == "table":
        write("data/table.csv", "a,client,b,target", *(f"{k % 7},{'xyz'[k % 3]},{-k},{k % 5 - 0.5 * k}" for k in range(60)))
