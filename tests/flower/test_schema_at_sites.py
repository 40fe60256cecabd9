"""A schema over the network: each site reads its own export, and the server refuses another schema before round 0."""

from __future__ import annotations

import argparse
import json
import re
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import LightningDataModule
from PIL import Image
from sites_over_bytes import ABSENT, POLICY, REGISTERED, SERVERS, TOLD, configuration, same_bits, simulate, start_site, weights
from small_images import paint
from three_hospitals import NAMES, SCHEMA, SETTINGS, clean, expected, write_exports
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import ConfigurationError, DataError
from fl_lightning.cli.federation_cli import main
from fl_lightning.data.schema_file import parse_schema, read_schema, schema_text
from fl_lightning.flower import envelope
from fl_lightning.flower.checks import digest_of_schema, require_schema
from fl_lightning.flower.policy import Policy
from fl_lightning.flower.site_check import check
from fl_lightning.flower.site_data import SiteData
from fl_lightning.flower.site_settings import SiteSettings, read_settings
from fl_lightning.functional.exact_moments import Moments, moments_of
from fl_lightning.messages import ClientInfo

TABLE = {"test_share": 0, "standardize": False, "batch_size": 8}


def write_site(name: str, path: str, schema: str | None = SCHEMA, more: dict[str, Any] | None = None, **settings: Any) -> Path:
    """Write a site's data.yaml, with a copy of the schema of its own unless that is None."""
    folder = Path(name)
    folder.mkdir(exist_ok=True)
    (folder / "own_schema.yaml").write_text(schema or "")
    own = {**TABLE, "path": path, **SETTINGS[name], **settings}
    own |= {} if schema is None else {"schema": str(folder / "own_schema.yaml")}
    site = {
        "datamodule": {"class_path": "TableDataModule", "init_args": own},
        "policy": POLICY,
        "device": "cpu",
        **(more or {}),
    }
    (folder / "data.yaml").write_text(yaml.safe_dump(site, allow_unicode=True))
    return folder / "data.yaml"


@pytest.fixture
def hospitals():
    """Three sites with their exports, and the server's clean table."""
    frame = clean()
    paths = write_exports(Path("exports"), frame)
    frame[:20].drop(columns="hospital").to_csv("server.csv", index=False)
    Path("schema.yaml").write_text(SCHEMA)
    REGISTERED[:] = NAMES
    ABSENT.clear()
    TOLD.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NAMES:
            write_site(name, paths[name])
            start_site(Path(), name)
    return paths


def config(**settings: Any) -> dict[str, Any]:
    found = configuration()
    found["model"]["init_args"]["network"]["init_args"]["in_features"] = 14
    own = {**TABLE, "schema": "schema.yaml", "test_path": "server.csv", **settings}
    found["data"] = {"datamodule": {"class_path": "TableDataModule", "init_args": own}}
    return found


def over_bytes(found: dict[str, Any], folder: str = "real") -> dict[str, Any]:
    Path("config.yaml").write_text(yaml.safe_dump(found))
    main(
        [
            "fit",
            "--config",
            "config.yaml",
            "--federation.pool",
            "sites_over_bytes.BytesSites",
            "--trainer.default_root_dir",
            folder,
        ]
    )
    return weights(Path(folder))


def test_three_exports_over_the_network_give_the_bits_of_the_simulation(hospitals):
    simulated = config(path=hospitals, exports=SETTINGS)
    simulated["data"]["partitioner"] = "DomainPartitioner"
    assert same_bits(simulate(simulated), over_bytes(config()))
    assert len({TOLD[name].schema for name in NAMES}) == 1
    assert TOLD["south"].label_counts is None


def test_a_site_with_another_schema_is_refused_by_name(hospitals, capsys):
    write_site("south", hospitals["south"], SCHEMA.replace("unit: m,", "unit: cm,"))
    start_site(Path(), "south")
    with pytest.raises(SystemExit):
        over_bytes(config())
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "The tables of south have another schema, so the same number would not mean the same as at the server. Send the "
        "file that 'data.datamodule.schema' names to these sites; they set it as 'schema' of the datamodule in data.yaml"
        in said
    )
    assert not list(Path("real").rglob("*.ckpt"))


def test_sites_are_compared_with_the_server_or_with_each_other():
    infos = [ClientInfo("a", 1), ClientInfo("b", 1, schema="x"), ClientInfo("c", 1, schema="x"), ClientInfo("d", 1, schema="y")]
    require_schema(infos[:3], "")
    require_schema(infos[:1], "")
    require_schema(infos[1:3], "x")
    with pytest.raises(ConfigurationError, match=r"The tables of d have another schema, so .* as at site b\. Send"):
        require_schema(infos, "")
    with pytest.raises(ConfigurationError, match=r"The tables of a have no schema, .* as at the server\."):
        require_schema(infos[:3], "x")
    with pytest.raises(ConfigurationError, match=r"The tables of a, b, c have another schema \(a without any\), "):
        require_schema(infos, "y")


def test_a_datamodule_of_ones_own_has_a_schema_if_it_says_so():
    class Own:
        schema = "a column, perhaps"

    assert digest_of_schema(Own()) == digest_of_schema(object()) == ""


def test_what_a_site_tells(hospitals):
    """Neither columns nor conversions leave it."""
    settings = read_settings(Path("south/data.yaml"))
    told = SiteData(settings).info("south", Policy())
    assert told.schema == settings.datamodule.schema.digest()
    assert "alter" not in repr(told)
    assert told.classes is None
    compared = SiteData(settings).info("south", Policy(), ("healthy", "relapse", "dead"), settings.datamodule.feature_names)
    assert compared.classes.equal
    assert compared.features.equal


def test_parts_of_a_site_with_two_schemas(hospitals):
    test = {"class_path": "TableDataModule", "init_args": {**TABLE, "path": "server.csv", "schema": "other.yaml"}}
    Path("other.yaml").write_text(SCHEMA.replace("unit: m,", "unit: cm,"))
    write_site("north", hospitals["north"], more={"test": test})
    with pytest.raises(
        ConfigurationError, match=r"'schema' of 'test' and of 'datamodule' differ in data.yaml. Set both to one"
    ):
        SiteData(read_settings(Path("north/data.yaml")))


# ------------------------------------------------------------------ the server's schema


def take_the_servers(names: tuple[str, ...], paths: dict[str, str], **policy: Any) -> None:
    """Start sites without a schema of their own, which take the server's unless the policy says otherwise."""
    for name in names:
        write_site(name, paths[name], more={"policy": {**POLICY, "schema": "server", **policy}}, schema=None)
        start_site(Path(), name)


def test_sites_that_take_the_servers_schema_give_the_bits_of_the_simulation(hospitals):
    simulated = config(path=hospitals, exports=SETTINGS)
    simulated["data"]["partitioner"] = "DomainPartitioner"
    take_the_servers(NAMES, hospitals)
    assert SERVERS["south"]._loaded is None
    one, other = simulate(simulated), over_bytes(config())
    assert same_bits(one, other)
    assert read_schema("south/state/server_schema.json") == read_schema("schema.yaml")
    start_site(Path(), "south")  # it knows the schema from now on
    assert SERVERS["south"]._loaded is not None
    assert same_bits(one, over_bytes(config(), "again"))


def test_a_server_cannot_read_other_columns_by_a_second_schema(hospitals, capsys):
    take_the_servers(("north",), hospitals, statistics=True)
    over_bytes(config())
    other = SCHEMA.replace(
        "  - {name: smoker, type: boolean}\n", "  - {name: ward, type: string, constraints: {enum: [3b, 4]}}\n"
    )
    kept = Path("north/state/server_schema.json").read_bytes()
    for _ in range(2):
        start_site(Path(), "north")
        said = envelope.opened(SERVERS["north"].answer(asking(schema_text(parse_schema(other)))), ("reply",))
        assert re.search(r"RefusedError: The server offers the schema \w+, but this site has taken \w+ from it", said["error"])
        assert Path("north/state/server_schema.json").read_bytes() == kept


def test_a_site_that_does_not_take_it_keeps_it_for_its_staff_alone(hospitals, capsys, monkeypatch):
    over_bytes(config())
    path = write_site("north", hospitals["north"], more={"policy": POLICY}, schema=None)
    for given in ({"folder": "north/state"}, {"schema": "schema.yaml", "folder": "elsewhere"}):
        passed, text = checked(path, capsys, monkeypatch, **given)
        assert passed, text
        assert "note    schema: that of the server (" in text
        assert ") describes the same tables as this site's" in text
        assert "'exports/north.csv': further columns are ignored: ward." in text
        assert "the site takes the server's schema only with 'policy.schema: server'" in text
    with pytest.raises(DataError, match="has no column 'target'"):
        start_site(Path(), "north")


def test_the_check_compares_a_schema_of_ones_own_with_the_servers(hospitals, capsys, monkeypatch):
    Path("other.yaml").write_text(SCHEMA.replace("unit: m,", "unit: cm,"))
    passed, text = checked(Path("north/data.yaml"), capsys, monkeypatch, schema="other.yaml")
    assert passed, text
    assert "other.yaml) describes other tables than this site's (" in text


def test_the_check_of_tables_that_wait_for_the_server(hospitals, capsys, monkeypatch):
    take_the_servers(("north",), hospitals)
    passed, text = checked(Path("north/data.yaml"), capsys, monkeypatch)
    assert not passed
    assert "FAILED  data: The tables wait for the server's schema ('policy.schema' is 'server'), and no server has" in text
    passed, text = checked(Path("north/data.yaml"), capsys, monkeypatch, schema="schema.yaml")
    assert passed, text


def test_counts_of_few_patients_do_not_leave_a_site_and_the_rest_fills_in_what_is_missing(hospitals):
    """West has two diverse patients, and hospitals of 30 rows have rare stages."""
    schema = SCHEMA.replace("missing: indicator}", "missing: most_frequent}")
    Path("schema.yaml").write_text(schema)
    for name in NAMES:
        write_site(name, hospitals[name], schema, more={"policy": {**POLICY, "statistics": True, "min_count": 5}})
        start_site(Path(), name)
    found = config()
    inner = found["model"]["init_args"]["network"]
    inner["init_args"]["in_features"] = 13
    scale = {"num_features": 13, "network": inner, "min_count": 5}
    found["model"]["init_args"]["network"] = {"class_path": "Standardized", "init_args": scale}
    simulated = {**found, "data": config(path=hospitals, exports=SETTINGS)["data"]}
    simulated["data"]["partitioner"] = "DomainPartitioner"
    one = over_bytes(found)
    assert same_bits(simulate(simulated), one)
    frame = expected(clean())[0]
    stages = [f"stage={stage}" for stage in ("I", "II", "III", "IV")]
    told = dict.fromkeys(stages, 0)
    for k, name in enumerate(NAMES):
        rows, sums = frame[30 * k : 30 * k + 30], Moments.of_texts(TOLD[name].moments)
        for place, column in enumerate(read_schema("schema.yaml").feature_names):
            ones = rows[column].sum()
            if set(rows[column]) <= {0.0, 1.0} and sums.counts[place]:
                assert 5 <= ones == sums.totals[place] / 2**172
            if column in stages and sums.counts[place]:
                told[column] += int(ones)
    assert Moments.of_texts(TOLD["west"].moments).counts[4:7].count(0) >= 2  # one gap would follow from the total
    fill = next(tensor for name, tensor in one.items() if name.endswith("network.fill"))
    assert fill[7:11].tolist() == [float(stage == max(stages, key=told.__getitem__)) for stage in stages]


@pytest.mark.filterwarnings("ignore:.*training batches")
def test_images_of_a_schemas_classes_have_one_scale_at_all_sites():
    """South lacks a class, and West takes the server's schema."""
    Path("schema.yaml").write_text(
        "fields: [{name: animal, type: string, constraints: {enum: [cat, dog, emu]}}]\ntarget: animal\n"
    )
    REGISTERED[:] = NAMES
    TOLD.clear()
    for k, (name, classes) in enumerate(zip(NAMES, ("cat dog emu", "cat dog", "cat emu"), strict=True)):
        for label in [*classes.split()]:
            paint(Path(f"images/{name}/{label}"), 6 + k, seed=10 * k + len(label))
        own = {"root": f"images/{name}", "batch_size": 4} | ({} if name == "west" else {"schema": "schema.yaml"})
        policy = {**POLICY, "statistics": True, "schema": "server"}
        Path(name).mkdir()
        site = {"datamodule": {"class_path": "ImageFolderDataModule", "init_args": own}, "policy": policy, "device": "cpu"}
        Path(f"{name}/data.yaml").write_text(yaml.safe_dump(site))
        start_site(Path(), name)
    paint(Path("server/cat"), 4, seed=99)
    found = configuration()
    lenet = {"class_path": "fl_lightning.LeNet", "init_args": {"channels": 3, "image_size": 16, "num_classes": 3}}
    found["model"]["init_args"]["network"] = {"class_path": "Standardized", "init_args": {"num_features": 3, "network": lenet}}
    shown = {"schema": "schema.yaml", "batch_size": 4, "root": "images", "test_root": "server"}
    found["data"] = {"datamodule": {"class_path": "ImageFolderDataModule", "init_args": shown}}
    found["data"]["partitioner"] = "DomainPartitioner"
    one = simulate(found)
    del found["data"]["partitioner"]
    assert same_bits(one, over_bytes(found))
    pixels = np.stack([np.asarray(Image.open(path)) for path in Path("images").rglob("*.png")]) / 255
    mean, std = (next(t for name, t in one.items() if name.endswith(f"network.{kind}")) for kind in ("mean", "std"))
    assert np.allclose(mean, pixels.mean((0, 1, 2)), rtol=1e-6)
    assert np.allclose(std, pixels.std((0, 1, 2)), rtol=1e-6)


class Named(LightningDataModule):
    """Names its classes itself, and not its dataset."""

    classes = ("cat", "dog")

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.rand(8, 2), torch.arange(8) % 2), batch_size=4)


def test_classes_of_a_datamodule_of_ones_own_are_compared():
    data = SiteData(SiteSettings(Named(), device="cpu"))
    assert data.info("a", Policy(), ("cat", "dog")).classes.equal
    assert data.info("a", Policy(), ("dog", "cat")).classes.moved == "dog"
    assert data.info("a", Policy()).digests[0] != ""


def test_sums_over_few_images_do_not_leave_a_site():
    """An image has more numbers than 'min_count'."""
    for label in ("cat", "dog"):
        paint(Path("few") / label, 4)
    site = "datamodule: {class_path: ImageFolderDataModule, init_args: {root: few}}\ndevice: cpu\n"
    Path("data.yaml").write_text(site)
    data = SiteData(read_settings(Path("data.yaml")))
    assert data.info("few", Policy(statistics=True), statistics=True).moments is None
    assert data.info("few", Policy(statistics=True, min_count=8), statistics=True).moments is not None


def test_the_check_names_the_columns_whose_sums_stay(hospitals, capsys, monkeypatch):
    path = write_site("west", hospitals["west"], more={"policy": {**POLICY, "statistics": True, "min_count": 3}})
    passed, text = checked(path, capsys, monkeypatch)
    assert passed, text
    assert re.search(r"and of their squares, but not those of [^;]*sex=male, sex=diverse[^;]*, which would tell of few", text)


def describing(paths: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a fit that shows what the features are like: at sites, and simulated."""
    found = {**config(), "partition_report": {"features": True, "min_count": 5}}
    simulated = {**found, "data": config(path=paths, exports=SETTINGS)["data"]}
    simulated["data"]["partitioner"] = "DomainPartitioner"
    return found, simulated


def start_telling(paths: dict[str, str], **policy: Any) -> None:
    for name in NAMES:
        agreed = {**POLICY, "statistics": True, "histograms": True, "min_count": 5, **policy}
        write_site(name, paths[name], more={"policy": agreed})
        start_site(Path(), name)


def bins_in(folder: str) -> list[str]:
    rows = Path(folder, "histograms.csv").read_text().splitlines()
    return [row for row in rows if not row.startswith("admitted")]  # it has no range, and so no common bins at sites


def test_sites_that_consent_tell_the_bins_of_the_simulation(hospitals):
    start_telling(hospitals)
    found, simulated = describing(hospitals)
    over_bytes(found)
    simulate(simulated)
    assert bins_in("real") == bins_in("simulated")
    ages = expected(clean())[0]["age"].to_numpy().reshape(3, 30)
    for own, name in zip(ages, NAMES, strict=True):
        counts = np.histogram(own.astype(np.float32), np.linspace(0, 120, 11))[0]
        told = TOLD[name].histograms[0]
        assert all(n in (-1, count) for n, count in zip(told, counts, strict=True))
        assert all(n == -1 or n >= 5 for n in told)
        assert sum(count for n, count in zip(told, counts, strict=True) if n == -1) not in range(1, 5)
    assert Path("real/features.png").exists()


def test_sites_tell_no_bins_unless_their_policy_says_so(hospitals):
    start_telling(hospitals, histograms=False)
    over_bytes(describing(hospitals)[0])
    assert all(info.histograms is None and info.moments is not None for info in TOLD.values())
    assert not any(row.startswith("age,") for row in bins_in("real"))
    start_telling(hospitals)
    over_bytes(config(), "again")  # a server that does not ask learns nothing
    assert all(info.histograms is None and info.moments is None for info in TOLD.values())
    data = SiteData(read_settings(Path("north/data.yaml")))
    assert data.info("north", Policy(histograms=True, min_noise=1.0), histograms=True).histograms is None
    assert data.info("north", Policy(histograms=True, min_count=31), histograms=True).histograms is None


def test_bins_are_told_once(hospitals, capsys):
    """A server could move the borders of the bins, or see which of them a new row is in."""
    start_telling(hospitals)
    over_bytes(describing(hospitals)[0])
    moved = SCHEMA.replace("maximum: 120", "maximum: 121")
    write_site("north", hospitals["north"], moved, {"policy": {**POLICY, "histograms": True}})
    start_site(Path(), "north")
    reply = envelope.opened(SERVERS["north"].answer(asking("", histograms=True)), ("reply",))
    assert "have changed since it told the counts of its bins" in reply["error"]


def standardized() -> dict[str, Any]:
    found = config()
    inner = found["model"]["init_args"]["network"]
    scale = {"num_features": 14, "network": inner}
    found["model"]["init_args"]["network"] = {"class_path": "Standardized", "init_args": scale}
    return found


def test_persons_count_and_not_their_rows(hospitals, monkeypatch):
    """Ten rows of a category may be those of one patient."""
    rows = Path("exports/north.csv").read_text().splitlines()
    visits = [f"{row},p{k // 3}" for k, row in enumerate(rows[1:])]
    Path("visits.csv").write_text("\n".join([rows[0] + ",patient", *visits]) + "\n")
    data = SiteData(read_settings(write_site("north", "visits.csv", person_column="patient")))
    names = read_schema("schema.yaml").feature_names
    for least in (2, 4):
        told = data.info("north", Policy(statistics=True, min_count=least), statistics=True).moments
        for k, column in enumerate(names):
            ones = expected(clean())[0][column][:30].sum()
            assert column[:3] not in ("sex", "sta") or told[0][k] == "0" or ones >= 3 * least
    assert data.info("north", Policy(statistics=True, min_count=11), statistics=True).moments is None
    assert data.info("north", Policy(histograms=True, min_count=11), histograms=True).histograms is None
    seen = []
    monkeypatch.setattr(
        data.whole, "noisy_moments", lambda client, epsilon, draw: seen.append(epsilon) or moments_of(torch.ones(1, 1))
    )
    data.info("north", Policy(statistics=True, statistics_epsilon=6.0), statistics=True)
    assert seen == [2.0]


def test_a_site_that_demands_noise_tells_the_same_noisy_sums_to_everyone(hospitals, capsys, monkeypatch):
    """The mean of several answers would have less noise."""
    start_telling(hospitals, statistics_epsilon=20.0, histograms=False)
    over_bytes(standardized())
    first = {name: TOLD[name].moments for name in NAMES}
    start_site(Path(), "north")
    over_bytes(standardized(), "again")
    assert {name: TOLD[name].moments for name in NAMES} == first
    assert SERVERS["north"]._description.summand(SERVERS["north"]._data).texts() == first["north"]  # its part under masks
    exact = expected(clean())[0].to_numpy().reshape(3, 30, -1)
    for own, name in zip(exact, NAMES, strict=True):
        told = Moments.of_texts(first[name])
        assert told.counts == (30,) * 13 + (0,)
        assert not np.isclose(told.means()[:4], own.mean(0)[:4]).all()
        assert np.all(np.abs(np.array(told.means())[[0, 1, 3]] - own.mean(0)[[0, 1, 3]]) < [60, 2, 1000])
    passed, text = checked(Path("north/data.yaml"), capsys, monkeypatch)
    assert passed, text
    assert "sums with noise (epsilon 20) of its inputs and of their squares, but not those of admitted, which have no" in text
    rows = Path("exports/north.csv").read_text().splitlines()
    Path("exports/north.csv").write_text("\n".join(rows[:-1]) + "\n")
    start_site(Path(), "north")
    with pytest.raises(SystemExit):
        over_bytes(standardized(), "changed")
    assert "have changed since it told the sums of its inputs" in " ".join(capsys.readouterr().err.split())


def test_impossible_counts_of_bins_are_refused(hospitals, monkeypatch, capsys):
    start_telling(hospitals)
    own = SERVERS["west"]._data.info
    monkeypatch.setattr(SERVERS["west"]._data, "info", lambda *args: replace(own(*args), histograms=((-2,),)))
    with pytest.raises(SystemExit):
        over_bytes(describing(hospitals)[0])
    assert "Site west tells impossible counts of bins." in capsys.readouterr().err


def test_a_report_about_inputs_is_refused_beside_privacy(hospitals, capsys):
    start_telling(hospitals)
    found = describing(hospitals)[0]
    privacy = {"max_norm": 1.0, "noise_multiplier": 1.0, "noise": "local"}
    found["federation"]["transforms"] = [{"class_path": "ClientPrivacy", "init_args": privacy}]
    with pytest.raises(SystemExit):
        over_bytes(found)
    said = " ".join(capsys.readouterr().err.split())
    assert "'partition_report.features' reads sums over the clients' inputs, which get no noise, but ClientPrivacy" in said
    assert not TOLD


def test_describe_says_how_to_ask_sites(hospitals, capsys):
    Path("config.yaml").write_text(yaml.safe_dump(config()))
    with pytest.raises(SystemExit):
        main(["describe", "--config", "config.yaml", "--federation.pool", "sites_over_bytes.BytesSites"])
    assert "To see what they tell, set 'partition_report.features' to true" in " ".join(capsys.readouterr().err.split())


def test_a_server_without_a_schema_cannot_fill_in_categories(hospitals):
    write_site("north", hospitals["north"], SCHEMA.replace("missing: indicator}", "missing: most_frequent}"))
    start_site(Path(), "north")
    reply = envelope.opened(SERVERS["north"].answer(asking("")), ("reply",))
    assert "Set 'data.datamodule.schema' at the server." in reply["error"]


def asking(schema: Any, **more: Any) -> dict[str, bytes]:
    """Return a server's question about the data, with a schema."""
    return {"order": envelope.request("describe", client=0, classes=None, features=None, schema=schema, **more)}


def hostile(name: str = "age", **more: Any) -> str:
    return json.dumps({"fields": [{"name": name, "type": "number", **more}]})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (hostile(constraints={"pattern": "(a+)+$"}), "the key 'pattern' is not supported"),
        (hostile("=cmd|' /C calc'!A0"), "a spreadsheet would run the name"),
        (hostile(**{"$ref": "https://evil.example/x"}), "the key '$ref' is not supported"),
        (hostile(type="os.system"), "the type 'os.system' is not supported"),
        (hostile("a\u001b[2J"), "contains control characters"),
        ("!!python/object/apply:os.system [touch harmed]", "It is not valid JSON"),
        ('{"fields": [' + "1," * 250_000 + "1]}", "It has more than 200000 keys and values."),
        ('{"fields": ' + "[" * 90_000 + "]" * 90_000 + "}", "It is"),
        (" " * 2**20 + "{}", "It is larger than 1 MiB."),
        ({"fields": []}, "The server's schema is not a text."),
    ],
)
def test_hostile_schemas_of_a_server_are_refused_and_not_kept(schema, message, hospitals):
    take_the_servers(("north",), hospitals)
    began = time.monotonic()
    said = envelope.opened(SERVERS["north"].answer(asking(schema)), ("reply",))
    assert message in said["error"]
    assert time.monotonic() - began < 10
    assert SERVERS["north"]._loaded is None
    assert not Path("north/state/server_schema.json").exists()
    assert not Path("harmed").exists()


def test_a_schema_that_does_not_fit_tells_the_server_nothing_of_the_rows(hospitals):
    take_the_servers(("north",), hospitals)
    reply = envelope.opened(SERVERS["north"].answer(asking(hostile(constraints={"maximum": 50}))), ("reply",))
    assert re.fullmatch(r"DataError \(code \w{8}; its text is in the site's errors.log\)", reply["error"])
    assert "info" not in reply
    again = envelope.opened(SERVERS["north"].answer(asking(hostile(constraints={"maximum": 60}))), ("reply",))
    assert "has taken" in again["error"]  # a server could halve the range until it knew the oldest


def test_a_site_that_waits_for_a_schema_refuses_a_server_without_one(hospitals):
    take_the_servers(("north",), hospitals)
    reply = envelope.opened(SERVERS["north"].answer(asking("")), ("reply",))
    assert "RefusedError: This site's tables take the server's schema, but the server offers none." in reply["error"]


# ------------------------------------------------------------------ site --check


def checked(
    path: Path, capsys: Any, monkeypatch: Any, schema: str | None = None, folder: str | None = None
) -> tuple[bool, str]:
    """Return whether the data pass, and what is printed."""
    monkeypatch.setattr("fl_lightning.flower.site_check.connection_tests", lambda arguments: [])
    passed = check(argparse.Namespace(name="north", data=str(path), schema=schema, folder=folder))
    return passed, capsys.readouterr().out


def test_the_check_of_a_good_export(hospitals, capsys, monkeypatch):
    passed, text = checked(Path("south/data.yaml"), capsys, monkeypatch)
    assert passed, text
    assert "note    datamodule: compared with its schema, for this site's staff only:" in text
    assert "'exports/south.csv' has 30 rows, separated by semicolons, in cp1252." in text
    assert "'exports/south.csv': 'age' is read from 'alter'." in text
    assert "% of the values are missing, which are marked." in text
    assert "the digest " in text
    passed, text = checked(Path("north/data.yaml"), capsys, monkeypatch)
    assert passed, text
    assert "'exports/north.csv': further columns are ignored: ward." in text


def test_the_check_of_an_export_with_many_mistakes(hospitals, capsys, monkeypatch):
    rows = [
        f"{200 if k < 3 else 40 + k};{150 + k};{k},5;{'m' if k % 2 else 'female'};I;yes;2021-01-0{k % 9 + 1};healthy"
        for k in range(20)
    ]
    Path("bad.csv").write_text(
        "\n".join(["age;height;platelets;sex;Stage;smoker;admitted;outcome", *rows, ";180;7.5;;;no;x;ill"]) + "\n"
    )
    path = write_site("north", "bad.csv", csv={"decimal": "."})
    passed, text = checked(path, capsys, monkeypatch)
    assert not passed
    for line in (
        "'bad.csv' has 21 rows, separated by semicolons, in utf-8.",
        "the column 'stage' is missing. Did you mean Stage?",
        "further columns are ignored: Stage.",
        "'age': 4.8 % of the values are missing, which the schema refuses.",
        "'age': 3 of 20 values are out of range (at least 0 years and at most 120 years).",
        "'height': 21 of 21 values are out of range (at least 0.3 m and at most 2.5 m). Is it another unit? Then set "
        "'scale' of 'height' to the factor from one to the other.",
        "'platelets': 20 values are not numbers, such as '0,5'. Cells such as '0,5' seem to have decimal commas: set 'csv: "
        '{decimal: ","}\'.',
        "'sex': 'm' (10 times) is no category of 'sex' in the schema (male, female, diverse).",
        "'admitted': 'x' (1 times) is not a date of the form %Y-%m-%d.",
        "'outcome': 'ill' (1 times) is no category of 'outcome' in the schema (healthy, relapse, dead).",
    ):
        assert line in text, line
    assert "FAILED  data: 'bad.csv' lacks columns of the schema: 'stage'. Did you mean Stage?" in text
