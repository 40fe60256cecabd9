"""Three hospitals with unlike exports as sites in this process, and a server with their schema."""

import argparse
import contextlib
import io
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from sites_over_bytes import ABSENT, HOOK, POLICY, POOL, REGISTERED, TOLD, configuration, of, simulate, start_site
from three_hospitals import NAMES, SCHEMA, SETTINGS, clean, in_clients, write_exports

from fl_lightning.flower import envelope
from fl_lightning.flower.site.check import check

TABLE = {"test_share": 0, "standardize": False, "batch_size": 8}


def write_site(
    name: str, path: str, schema: str = SCHEMA, own: dict[str, Any] | None = None, limits: Any = (), **settings: Any
) -> Path:
    """Write a site's data.yaml, with a copy of the schema of its own."""
    folder = Path(name)
    folder.mkdir(exist_ok=True)
    (folder / "own_schema.yaml").write_text(schema)
    arguments = {**TABLE, "path": path, **SETTINGS[name], **(own or {}), "schema": str(folder / "own_schema.yaml")}
    site = {"datamodule": of("TableDataModule", **arguments), "device": "cpu", "policy": {**POLICY, **dict(limits)}, **settings}
    (folder / "data.yaml").write_text(yaml.safe_dump(site, allow_unicode=True))
    return folder / "data.yaml"


def start_hospitals() -> dict[str, str]:
    """Write three exports and the server's clean table, start the sites, and return the paths."""
    frame = clean()
    paths = write_exports(Path("exports"), frame)
    frame[:20].drop(columns="hospital").to_csv("server.csv", index=False)
    Path("schema.yaml").write_text(SCHEMA)
    REGISTERED[:] = NAMES
    for state in (ABSENT, TOLD, HOOK):
        state.clear()
    start_again(paths)
    return paths


def start_again(paths: dict[str, str], schema: str = SCHEMA, **limits: Any) -> None:
    """Start the three sites with other limits of their policies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NAMES:
            write_site(name, paths[name], schema, limits=limits)
            start_site(Path(), name)


def config(paths: dict[str, str] | None = None, features: int = 14, scaled: bool = False, **settings: Any) -> dict[str, Any]:
    """Return the configuration of a fit at the sites, or of its simulation from the exports at these paths."""
    found = configuration() | settings
    arguments = found["model"]["init_args"]
    arguments["network"]["init_args"]["in_features"] = features
    if scaled:
        arguments["network"] = of("Standardized", num_features=features, network=arguments["network"])
    own: dict[str, Any] = {**TABLE, "schema": "schema.yaml"}
    found["data"] = {"datamodule": of("TableDataModule", **own, test_path="server.csv")}
    if paths is not None:
        found["data"] = {"clients": in_clients(paths, **own)}
    return found


def over_bytes(found: dict[str, Any], folder: str = "real", *more: str) -> dict[str, Any]:
    """Fit with the sites, and return the weights."""
    return simulate(found, folder, *POOL, *more)


def asking(schema: Any, **more: Any) -> dict[str, bytes]:
    """Return a server's question about the data, with a schema."""
    return {"order": envelope.request("describe", client=0, schema=schema, **more)}


def checked(path: Path) -> tuple[bool, str]:
    """Return whether a site's data pass ``site --check``, and what is printed."""
    said = io.StringIO()
    arguments = argparse.Namespace(name="north", data=str(path))
    with mock.patch("fl_lightning.flower.site.check.connection_tests", return_value=[]), contextlib.redirect_stdout(said):
        return check(arguments), said.getvalue()
