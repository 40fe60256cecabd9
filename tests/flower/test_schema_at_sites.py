"""A schema over the network: each site reads its own export, and the server refuses another schema before round 0."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from asked_site import opened, told
from hospitals_over_bytes import asking, checked, config, over_bytes, start_hospitals, write_site
from lightning.pytorch import LightningDataModule
from sites_over_bytes import SERVERS, TOLD, refused, same_bits, simulate, start_site
from three_hospitals import NAMES, SCHEMA
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import ConfigurationError
from fl_lightning.flower.server.agree import require_same
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.settings import SiteSettings, read_settings
from fl_lightning.messages import ClientInfo

IN_CM = SCHEMA.replace("unit: m,", "unit: cm,")


@pytest.fixture
def hospitals() -> dict[str, str]:
    return start_hospitals()


@pytest.mark.slow
def test_three_exports_over_the_network_give_the_bits_of_the_simulation(hospitals):
    assert same_bits(simulate(config(hospitals)), over_bytes(config()))
    assert len({TOLD[name].schema for name in NAMES}) == 1
    assert TOLD["south"].label_counts is None


def test_a_site_with_another_schema_is_refused_by_name(hospitals):
    write_site("south", hospitals["south"], IN_CM)
    start_site(Path(), "south")
    assert (
        "south and the server have different schemas (or none), so the same number would not mean the same. Send "
        "the file that 'data.datamodule.schema' names to these sites; they set it as 'schema' in their data.yaml."
        in refused(config(), fit=over_bytes)
    )
    assert not list(Path("real").rglob("*.ckpt"))


def test_sites_are_compared_with_the_server_or_with_each_other():
    infos = [ClientInfo("a", 1), ClientInfo("b", 1, schema="x"), ClientInfo("c", 1, schema="x"), ClientInfo("d", 1, schema="y")]
    require_same(infos[:3], "")
    require_same(infos[:1], "")
    require_same(infos[1:3], "x")
    for some, server, words in (
        (infos, "", r"^d and b have different schemas"),
        (infos[:3], "x", r"^a and the server have different schemas \(or none\)"),
        (infos, "y", r"^a, b, c and the server have"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            require_same(some, server)


def test_what_a_site_tells(hospitals):
    """Neither columns nor conversions leave it."""
    settings = read_settings(Path("south/data.yaml"))
    info = SiteData(settings).info("south", Policy())
    assert info.schema == settings.datamodule.schema.digest()
    assert "alter" not in repr(info)


def test_parts_of_a_site_with_two_schemas(hospitals):
    own = {"test_share": 0, "standardize": False, "batch_size": 8, "path": "server.csv", "schema": "other.yaml"}
    Path("other.yaml").write_text(IN_CM)
    write_site("north", hospitals["north"], test={"class_path": "TableDataModule", "init_args": own})
    with pytest.raises(ConfigurationError, match=r"'schema' of 'test' and of 'datamodule' differ in data\.yaml\. Set both"):
        SiteData(read_settings(Path("north/data.yaml")))


# ------------------------------------------------------------------ a server without one


def test_a_server_without_a_schema_cannot_fill_in_categories(hospitals):
    write_site("north", hospitals["north"], SCHEMA.replace("missing: indicator}", "missing: most_frequent}"))
    start_site(Path(), "north")
    assert "Set 'data.datamodule.schema' at the server." in told(opened(SERVERS["north"].answer(asking(""))))


# ------------------------------------------------------------------ datamodules of one's own


class Named(LightningDataModule):
    """Names its classes itself, and not its dataset."""

    classes = ("cat", "dog")
    schema = "a column, perhaps"

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.rand(8, 2), torch.arange(8) % 2), batch_size=4)


def test_classes_of_a_datamodule_of_ones_own_are_compared():
    data = SiteData(SiteSettings(Named(), device="cpu"))
    assert data.names("classes") == ("cat", "dog")
    info = data.info("a", Policy())
    assert (info.digests[0] != "", info.schema) == (True, "")


# ------------------------------------------------------------------ site --check


def test_the_check_of_a_good_export(hospitals):
    passed, text = checked(Path("south/data.yaml"))
    assert passed, text
    assert "note    datamodule: compared with its schema, for this site's staff only:" in text
    assert "'exports/south.csv' has 30 rows." in text
    assert "'exports/south.csv' has 'age' in 'alter'." in text
    assert "% of the values of 'height'." in text
    assert re.search(r", schema \w{8}", text)


def test_the_check_of_an_export_with_many_mistakes(hospitals):
    own = "{};{};{},5;{};I;yes;2021-01-0{};healthy"
    rows = [own.format(200 if k < 3 else 40 + k, 150 + k, k, "m" if k % 2 else "female", k % 9 + 1) for k in range(20)]
    head = "age;height;platelets;sex;Stage;smoker;admitted;outcome"
    Path("bad.csv").write_text("\n".join([head, *rows, ";180;7.5;;;no;x;ill"]) + "\n")
    path = write_site("north", "bad.csv", own={"csv": {"separator": ";"}})
    passed, text = checked(path)
    assert not passed
    for line in (
        "'bad.csv' has 21 rows.",
        "'bad.csv' lacks the column 'stage'. Did you mean Stage?",
        "'bad.csv' has further columns, which are ignored: Stage.",
        "'bad.csv' lacks 4.8 % of the values of 'age'.",
        "bad.csv, line 22: the column 'age' is empty. Fill it, or remove the row; or set 'missing' of 'age' in the schema",
        "bad.csv, line 2: the column 'age' holds '200' but 'age' is at most 120 years in the schema, in 3 of 21 rows.",
        "'height' is at most 2.5 m in the schema, in 21 of 21 rows. Correct the cell, or change the schema of all. Is it "
        "another unit? Then set its factor: 'data.datamodule.columns: {height: {scale: ...}}'.",
        "the column 'platelets' holds '0,5', which is not a number up to 3.4e+38, in 20 of 21 rows. Neither are '1,5', ",
        'If the file has another form, state it, such as \'data.datamodule.csv: {separator: ";", decimal: ","}\'.',
        "line 3: the column 'sex' holds 'm', which is not a category of 'sex' (male, female, diverse), in 10 of 21 rows.",
        "the column 'admitted' holds 'x', which is not a date of the form %Y-%m-%d.",
        "line 22: the column 'outcome' holds 'ill', which is not a category of 'outcome' (healthy, relapse, dead).",
    ):
        assert line in text, line
    assert "FAILED  data: 'bad.csv' lacks columns: 'stage'. Did you mean Stage?" in text
