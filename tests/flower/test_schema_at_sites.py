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
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.settings import SiteSettings, read_settings

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
    told = text.partition("ok      data: ")[2]
    assert re.search(r", schema \w{8}", told)
    assert "alter" not in told  # neither columns nor conversions leave


def test_the_check_of_an_export_with_many_mistakes(hospitals):
    """All at once; what is said of single cells is that of data/test_table_schema.py and of the table of refusals."""
    Path("bad.csv").write_text("age;height;Stage\n200;180;I\n;190;II\n")
    passed, text = checked(write_site("north", "bad.csv", own={"csv": {"separator": ";"}}))
    assert not passed
    for line in (
        "'bad.csv' has 2 rows.",
        "'bad.csv' lacks the column 'stage'. Did you mean Stage?",
        "'bad.csv' has further columns, which are ignored: Stage.",
        "'bad.csv' lacks 50 % of the values of 'age'.",
        "bad.csv, line 3: the column 'age' is empty. Fill it, or remove the row; or set 'missing' of 'age' in the schema",
        "bad.csv, line 2: the column 'age' holds '200' but 'age' is at most 120 years in the schema.",
        "the column 'height' holds '180' but 'height' is at most 2.5 m in the schema, in 2 of 2 rows.",
        "FAILED  data: 'bad.csv' lacks columns: ",
    ):
        assert line in text, line
