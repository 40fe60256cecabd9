"""What hospitals tell of their inputs before a fit: sums, none of which is about few patients."""

from pathlib import Path

import pytest
import yaml
from asked_site import opened
from hospitals_over_bytes import asking, config, over_bytes, start_again, start_hospitals, write_site
from sites_over_bytes import POOL, TELLS, TOLD, same_bits, simulate, start_site
from small_images import paint
from three_hospitals import NAMES, SCHEMA, clean, expected

from fl_lightning.cli.federation_cli import main
from fl_lightning.data.schema_file import parse_schema, read_schema
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.settings import read_settings
from fl_lightning.functional.exact_moments import Moments

SUMS = [*TELLS, "statistics"]


@pytest.fixture
def hospitals() -> dict[str, str]:
    return start_hospitals()


def test_counts_of_few_patients_do_not_leave_a_site_and_the_rest_fills_in_what_is_missing(hospitals):
    """West has two diverse patients, and hospitals of 30 rows have rare stages."""
    schema = SCHEMA.replace("missing: indicator}", "missing: most_frequent}")
    Path("schema.yaml").write_text(schema)
    start_again(hospitals, schema, tells=SUMS, min_rows=5)
    found, simulated = config(None, 13, scaled=True), config(hospitals, 13, scaled=True)
    for one in (found, simulated):
        one["model"]["init_args"]["network"]["init_args"]["min_count"] = 5
    real = over_bytes(found)
    assert same_bits(simulate(simulated), real)
    frame = expected(clean())[0]
    stages = [f"stage={stage}" for stage in ("I", "II", "III", "IV")]
    known = dict.fromkeys(stages, 0)
    for k, name in enumerate(NAMES):
        rows, sums = frame[30 * k : 30 * k + 30], Moments.of_texts(TOLD[name].moments)
        for place, column in enumerate(read_schema("schema.yaml").feature_names):
            ones = rows[column].sum()
            if set(rows[column]) <= {0.0, 1.0} and sums.counts[place]:
                assert 5 <= ones == sums.totals[place] / 2**172
            if column in stages and sums.counts[place]:
                known[column] += int(ones)
    assert Moments.of_texts(TOLD["west"].moments).counts[4:7].count(0) >= 2  # one gap would follow from the total
    fill = next(tensor for name, tensor in real.items() if name.endswith("network.fill"))
    assert fill[7:11].tolist() == [float(stage == max(stages, key=known.__getitem__)) for stage in stages]


def test_sums_over_few_images_do_not_leave_a_site():
    """An image has more numbers than 'min_count'."""
    for label in ("cat", "dog"):
        paint(Path("few") / label, 4)
    Path("data.yaml").write_text("datamodule: {class_path: ImageFolderDataModule, init_args: {root: few}}\ndevice: cpu\n")
    data = SiteData(read_settings(Path("data.yaml")))
    assert data.info("few", Policy(tells=["statistics"]), statistics=True).moments is None
    assert data.info("few", Policy(tells=["statistics"], min_rows=8), statistics=True).moments is not None


def test_a_servers_schema_cannot_count_a_rare_value_as_missing(hospitals):
    """A server declares the value of one patient missing; a site reads its own schema alone."""
    rare = clean()["platelets"][:30].dropna().astype(int).value_counts().idxmin()
    schema = SCHEMA.replace("missing: {constant: 250}", "missing: mean").replace('["", NA]', f'["", NA, "{rare}"]')
    write_site("north", hospitals["north"], limits={"tells": SUMS, "min_rows": 5})
    asked = (parse_schema(schema).text, parse_schema(SCHEMA).digest())
    infos = [opened(start_site(Path(), "north").answer(asking(text, statistics=True)))["info"] for text in asked]
    assert infos[0] == infos[1]
    assert infos[0].moments is not None


def test_persons_count_and_not_their_rows(hospitals):
    """Ten rows of a category may be those of one patient."""
    rows = Path("exports/north.csv").read_text().splitlines()
    visits = [f"{row},p{k // 3}" for k, row in enumerate(rows[1:])]
    Path("visits.csv").write_text("\n".join([rows[0] + ",patient", *visits]) + "\n")
    data = SiteData(read_settings(write_site("north", "visits.csv", own={"person_column": "patient"})))
    names = read_schema("schema.yaml").feature_names
    for least in (2, 4):
        sums = data.info("north", Policy(tells=["statistics"], min_rows=least), statistics=True).moments
        for k, column in enumerate(names):
            ones = expected(clean())[0][column][:30].sum()
            assert column[:3] not in ("sex", "sta") or sums[0][k] == "0" or ones >= 3 * least
    assert data.info("north", Policy(tells=["statistics"], min_rows=11), statistics=True).moments is None


def test_describe_says_how_to_ask_sites(hospitals, capsys):
    Path("config.yaml").write_text(yaml.safe_dump(config()))
    with pytest.raises(SystemExit):
        main(["describe", "--config", "config.yaml", *POOL])
    assert "To see what they tell, set 'federation_report.features' to true" in " ".join(capsys.readouterr().err.split())
