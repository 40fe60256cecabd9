"""Three hospitals whose exports differ in everything that exports differ in, and the clean table of the same rows."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from command_line import ROOT

NAMES = ("north", "south", "west")


def _shown(name: str) -> str:
    """Return a file that the page shows."""
    page = (ROOT / "docs" / "schema.md").read_text(encoding="utf-8")
    return re.search(rf":caption: {name}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1]


SCHEMA = _shown("schema.yaml")
_CLIENTS = yaml.safe_load(_shown("hospitals.yaml"))["data"]["clients"]
SETTINGS: dict[str, dict[str, Any]] = {
    name: {key: own for key, own in _CLIENTS[name]["init_args"].items() if key in ("csv", "columns")} for name in NAMES
}


def in_clients(paths: dict[str, str], **more: Any) -> dict[str, Any]:
    """Return the setting 'data.clients' for the exports at these paths."""
    own = {name: {**more, "path": path, **SETTINGS[name]} for name, path in paths.items()}
    return {name: {"class_path": "TableDataModule", "init_args": arguments} for name, arguments in own.items()}


def clean(rows: int = 90, seed: int = 0) -> pd.DataFrame:
    """Return the rows of all three hospitals, in the schema's names and units; no one in the south has died."""
    rng = np.random.default_rng(seed)
    hospital = np.repeat(NAMES, rows // 3)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 95, rows),
            "height": rng.integers(150, 200, rows) / 100,
            "platelets": rng.integers(50, 500, rows),
            "sex": rng.choice(["male", "female"], rows),
            "stage": rng.choice(["I", "II", "III", "IV"], rows),
            "smoker": rng.random(rows) < 0.3,
            "admitted": pd.Timestamp("2019-06-01") + pd.to_timedelta(rng.integers(0, 2000, rows), unit="D"),
            "outcome": rng.choice(["healthy", "relapse", "dead"], rows),
            "hospital": hospital,
        }
    )
    frame["age"] = frame["age"].astype(float)
    frame.loc[(hospital == "south") & (frame["outcome"] == "dead"), "outcome"] = "healthy"
    frame.loc[(hospital == "west").nonzero()[0][:2], "sex"] = "diverse"
    for name, share in (("height", 0.2), ("platelets", 0.1), ("stage", 0.15)):
        frame[name] = frame[name].astype(object).where(rng.random(rows) >= share, None)
    return frame


def write_exports(folder: Path, frame: pd.DataFrame) -> dict[str, str]:
    """Write the three exports, and return their paths by hospital."""
    folder.mkdir(exist_ok=True)
    own = {name: frame[frame["hospital"] == name].drop(columns="hospital").reset_index(drop=True) for name in NAMES}
    shuffled = own["north"][["outcome", "admitted", "stage", "sex", "smoker", "platelets", "height", "age"]]
    shuffled.assign(ward="3b").to_csv(folder / "north.csv", index=False, na_rep="NA")
    south = own["south"]
    german = pd.DataFrame(
        {
            "alter": south["age"].map(lambda value: f"{value:.1f}".replace(".", ",")),
            "groesse_cm": south["height"].map(lambda value: "unbekannt" if value is None else str(round(100 * value))),
            "geschlecht": south["sex"].map({"male": "m", "female": "w", "diverse": "d"}),
            "aufnahme": south["admitted"].dt.strftime("%d.%m.%Y"),
            "thrombozyten": south["platelets"].map(lambda value: "" if value is None else str(value)),
            "stadium": south["stage"].map({"I": "1", "II": "2", "III": "3", "IV": "4"}),
            "raucher": south["smoker"].map({True: "ja", False: "nein"}),
            "ergebnis": south["outcome"].map({"healthy": "gesund", "relapse": "Rückfall", "dead": "tot"}),
        }
    )
    german.to_csv(folder / "south.csv", index=False, sep=";", encoding="cp1252")
    west = own["west"]
    west = west.assign(age_months=(12 * west["age"]).astype(int), height=west["height"].astype(float)).drop(columns="age")
    west = west.assign(platelets=west["platelets"].astype(float))
    west.to_parquet(folder / "west.parquet")
    return {"north": str(folder / "north.csv"), "south": str(folder / "south.csv"), "west": str(folder / "west.parquet")}


def expected(frame: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the features and the classes as pandas makes them."""
    features = pd.DataFrame({"age": frame["age"]})
    features["height"] = frame["height"].astype(float).fillna(1.7)
    features["height=missing"] = frame["height"].isna().astype(float)
    features["platelets"] = frame["platelets"].astype(float).fillna(250)
    for name, known in (("sex", ["male", "female", "diverse"]), ("stage", ["I", "II", "III", "IV"])):
        column = pd.Categorical(frame[name], categories=known)
        dummies = pd.get_dummies(pd.Series(column, index=frame.index), prefix=name, prefix_sep="=").astype(float)
        features = pd.concat([features, dummies], axis=1)
    features["stage=missing"] = frame["stage"].isna().astype(float)
    features["smoker"] = frame["smoker"].astype(float)
    features["admitted"] = (pd.to_datetime(frame["admitted"]) - pd.Timestamp("2020-01-01")).dt.days.astype(float)
    return features, pd.Categorical(frame["outcome"], categories=["healthy", "relapse", "dead"]).codes
