"""The tables and figures in docs/studies are what their run tables say."""

import pandas as pd
import pytest
from command_line import ROOT
from packaging.version import Version
from study_tables import typed

from fl_lightning.functional.privacy import epsilon_of_examples

for package in ("matplotlib", "scipy"):
    pytest.importorskip(package, reason="an extra: pip install 'fl_lightning[compare]'")

FOLDERS = sorted(path.parent for path in (ROOT / "docs" / "studies").glob("*/table.csv.gz"))


@pytest.mark.slow
@pytest.mark.usefixtures("_only_png")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_report_is_made_again_from_its_table(folder, tmp_path):
    import matplotlib
    from matplotlib.testing.compare import compare_images

    config = ROOT / "configs" / "studies" / f"{folder.name}.yaml"
    status, said = typed("report", "--config", config, "--table", folder / "table.csv.gz", "--out", tmp_path)
    assert status == 0, said
    assert (tmp_path / "report.md").read_text() == (folder / "report.md").read_text()
    pictures = sorted(path.name for path in folder.glob("*.png"))
    assert pictures
    assert pictures == sorted(path.name for path in tmp_path.glob("*.png"))
    if Version(matplotlib.__version__) < Version("3.11"):
        return  # its letters are different ones
    for name in pictures:
        if (folder / name).read_bytes() == (tmp_path / name).read_bytes():
            continue
        # Another version of matplotlib may place a letter elsewhere.
        assert compare_images(str(folder / name), str(tmp_path / name), tol=10) is None


@pytest.mark.slow
def test_the_epsilons_of_examples_are_those_of_the_present_accountant():
    """50 steps a round, on 60 of 3,000 images on average. No run need be repeated for a better accountant."""
    table = pd.read_csv(ROOT / "docs" / "studies" / "privacy_of_examples" / "table.csv.gz")
    spent = table[table.metric == "federation/epsilon_of_examples"]
    assert len(spent) == 30
    for noise, round_idx, value in zip(spent.noise, spent["round"], spent.value, strict=True):
        assert value == pytest.approx(epsilon_of_examples(float(noise), 60 / 3000, 50 * (round_idx + 1), 1e-4), rel=1e-5)


def test_every_study_has_what_its_file_says():
    """A study without a table yet is named as such in the docs."""
    text = (ROOT / "docs" / "studies.md").read_text()
    for path in (ROOT / "configs" / "studies").glob("*.yaml"):
        row = next(line for line in text.splitlines() if f"`configs/studies/{path.name}`" in line and line.startswith("|"))
        has_table = (ROOT / "docs" / "studies" / path.stem / "table.csv.gz").exists()
        assert has_table or "not run yet" in row or "a few minutes" in row, path.stem
