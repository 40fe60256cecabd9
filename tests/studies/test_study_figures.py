"""The figures of a study: what is drawn is what the table says, and no two lines look alike."""

import math
import statistics
from itertools import combinations

import pytest
from study_tables import ACCURACY, of_curves, table

from fl_lightning import ConfigurationError
from fl_lightning.strategies import ALGORITHMS
from fl_lightning.studies import ReportOptions, Row, RunTable, write_report
from fl_lightning.studies import figures as drawing
from fl_lightning.studies.figures import MOST_STYLES, style, styles
from fl_lightning.studies.panels import Measure, panels

pytest.importorskip("matplotlib", reason="figures are an extra: pip install 'fl_lightning[compare]'")
pytest.importorskip("scipy", reason="paired tests are an extra: pip install 'fl_lightning[compare]'")


def test_curves_are_means_with_a_band_of_one_deviation():
    made = table(("paper", "even"))
    figure = drawing.curves(made, panels(made), Measure())
    assert [axis.get_title() for axis in figure.axes] == ["partition: paper", "partition: even"]
    axis = figure.axes[0]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("communication rounds", "validation accuracy in percent")
    for line, strategy, band in zip(axis.lines, ("FedAvg", "AdaFed"), axis.collections, strict=True):
        values = [[100 * ACCURACY[strategy, seed][r] for seed in range(3)] for r in range(4)]
        means, stds = [statistics.fmean(own) for own in values], [statistics.stdev(own) for own in values]
        assert line.get_label() == strategy
        assert list(line.get_xdata()) == [1, 2, 3, 4]
        assert list(line.get_ydata()) == pytest.approx(means)
        corners = band.get_paths()[0].vertices[:, 1]
        assert corners.max() == pytest.approx(max(m + s for m, s in zip(means, stds, strict=True)))
        assert corners.min() == pytest.approx(min(m - s for m, s in zip(means, stds, strict=True)))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == ["FedAvg", "AdaFed"]
    assert legend.get_title().get_text() == "Lines: mean over 3 seeds; bands: ± one standard deviation"


def test_classes_and_clients_side_by_side():
    (panel,) = panels(table())
    figure = drawing.families(table(), panel, "client_share", "share", "client")
    assert [line.get_label() for line in figure.axes[0].lines] == ["0", "2", "10"]
    assert list(figure.axes[1].lines[2].get_ydata()) == [0.5] * 4
    assert all(axis.get_ylim()[0] == 0 for axis in figure.axes)
    assert all(axis.get_ylim()[1] >= 0.5 for axis in figure.axes)
    assert drawing.families(table(), panel, "client_score", "score", "client") is None


def test_heat_maps_of_shares_of_the_true_class_and_of_clients_by_classes():
    (panel,) = panels(table())
    figure = drawing.confusions(table(), panel)
    (image,) = figure.axes[0].images
    assert image.get_array().tolist() == [[80.0, 20.0], [25.0, 75.0]]
    assert [text.get_text() for text in figure.axes[0].texts] == ["80", "20", "25", "75"]
    axis = drawing.clients(table(), panel).axes[0]
    assert axis.images[0].get_array().tolist() == [[1.0, 0.0], [20.0, 30.0], [4.0, 0.0]]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["0", "1", "2"]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("class", "client")


@pytest.mark.slow
def test_a_report_names_its_files_and_is_the_same_again_and_an_earlier_one_s_pictures_do_not_stay(tmp_path):
    options = ReportOptions(every=2, after=2, targets=[0.8], baseline="FedAvg")
    files = write_report(table(("paper", "even")), options, tmp_path / "one", "a study")
    kinds = ("class_f1", "shares", "confusion", "clients")
    names = ["curves", *(f"{kind}_{number}" for kind in kinds for number in (1, 2))]
    shown = [f"{name}.{kind}" for name in names for kind in ("png", "svg", "pdf")]
    assert sorted(path.name for path in files) == sorted(["report.html", "report.md", "report.tex", *shown])
    (tmp_path / "two").mkdir()
    for name in ("class_f1_7.png", "clients_9.svg", "my_photo.png", "curves_of_mine.png"):
        (tmp_path / "two" / name).write_bytes(b"")
    write_report(table(("paper", "even")), options, tmp_path / "two", "a study")
    found = {path.name for path in (tmp_path / "two").iterdir()}
    assert found == {*(path.name for path in files), "my_photo.png", "curves_of_mine.png"}
    for path in files:
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_a_table_without_classes_has_only_curves(tmp_path):
    bare = of_curves({"r": [[1.0, 0.5, 1 / 3]]}, "val_loss", ())
    files = write_report(bare, ReportOptions(metric="val_loss", mode="min", percent=False), tmp_path, "bare")
    expected = ["curves.pdf", "curves.png", "curves.svg", "report.html", "report.md", "report.tex"]
    assert sorted(path.name for path in files) == expected
    assert "| all | 0.3333 | 0.3333 | 3.0 |" in (tmp_path / "report.md").read_text()


def test_reports_of_what_is_not_there(tmp_path):
    said = "'test_accuracy', but the runs logged: val_accuracy, val_f1_macro."
    with pytest.raises(ConfigurationError, match=said):
        write_report(table(), ReportOptions(metric="test_accuracy"), tmp_path, "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="which is a file"):
        write_report(table(), ReportOptions(), tmp_path / "file", "x")


def labels(figure) -> list[list[str]]:
    return [[line.get_label() for line in axis.lines] for axis in figure.axes]


def test_the_legend_tells_how_many_seeds_lines_have_and_many_settings_are_drawn_a_few_at_a_time():
    few = of_curves({"A": [[0.5]] * 2, "B": [[0.5]] * 5})
    (legend,) = drawing.curves(few, panels(few), Measure()).legends
    assert legend.get_title().get_text() == "Lines: mean over 2 to 5 seeds; bands: ± one standard deviation"
    many = of_curves({f"s{k}": [[k / 20] * 2] for k in range(15)})
    figure = drawing.curves(many, panels(many), Measure())
    assert labels(figure) == [["s0", *(f"s{k}" for k in range(1, 8))], ["s0", *(f"s{k}" for k in range(8, 15))]]
    assert not figure.legends
    assert [[text.get_text() for text in axis.get_legend().texts] for axis in figure.axes] == labels(figure)


def test_each_partition_that_is_compared_is_drawn():
    counts = {"a": (1, 2), "b": (1, 2), "c": (5, 6)}
    rows = [Row(n, (n,), 0, 0, f"partition/0/{k}", x) for n, own in counts.items() for k, x in enumerate(own)]
    made = RunTable(["partition"], rows)
    figure = drawing.clients(made, panels(made)[0])
    pictures = [axis for axis in figure.axes if axis.get_xlabel() == "class"]
    assert [(axis.get_title(), axis.images[0].get_array().tolist()) for axis in pictures] == [("a", [[1, 2]]), ("c", [[5, 6]])]


def test_names_are_no_formulas_and_gaps_are_no_values(tmp_path):
    """A name with a dollar, a run that diverged, and a metric that one panel lacks."""
    axes = ("strategy", "partition")
    drawn = of_curves({"$x$|even": [[0.5, math.nan, math.inf]], "b|even": [[0.1, 0.2, 0.3]]}, axes=axes)
    made = RunTable(axes, [*drawn.rows(), Row("other", ("b", "skew"), 0, 0, "val_loss", 1.0)])
    write_report(made, ReportOptions(every=1, after=1, also=[]), tmp_path, "x")
    assert "| $x$ | **50.00** | nan | inf |" in (tmp_path / "report.md").read_text().replace("nan | nan", "nan | inf")
    figure = drawing.curves(made, panels(made), Measure())
    assert [text.get_text() for text in figure.legends[0].texts] == [r"\$x\$", "b"]
    assert [math.isnan(y) for y in figure.axes[0].lines[0].get_ydata()] == [False, True, True]


def test_the_partition_is_in_the_title():
    facts = {f"{a}|{split}": {"partition": f"{split}, 3 clients"} for split in ("IID", "shards") for a in "AB"}
    made = of_curves({key: [[0.5]] for key in facts}, axes=("algorithm", "split"), facts=facts)
    figure = drawing.curves(made, panels(made), Measure())
    assert figure.get_suptitle() == ""
    titles = [f"split: {split}\npartition: {split}, 3 clients" for split in ("IID", "shards")]
    assert [axis.get_title() for axis in figure.axes] == titles
    assert drawing.curves(made, panels(made)[:1], Measure()).get_suptitle() == "Partition: IID, 3 clients"


# ------------------------------------------------------------------ the look of lines


def test_any_two_lines_differ_also_without_colour():
    """Any two styles differ in two of colour, dash and marker: what a reader cannot see of one is in another."""
    assert MOST_STYLES == 40
    for one, other in combinations([style(k) for k in range(MOST_STYLES)], 2):
        assert sum(getattr(one, part) != getattr(other, part) for part in ("colour", "dash", "marker")) >= 2


def test_an_algorithm_looks_the_same_in_every_study():
    one = styles(["FedAvg", "AdaFed", "mine", "Krum"])
    other = styles(["Krum", "yours", "AdaFed", "FedProx", "FedAvg"])
    assert all(one[name] == other[name] for name in ("FedAvg", "AdaFed", "Krum"))
    for own in (one, styles([one.name for group in ALGORITHMS.values() for one in group])):
        assert len({(s.colour, s.dash, s.marker) for s in own.values()}) == len(own)


def test_twelve_strategies_are_in_one_panel_and_look_the_same_in_all():
    names = ["FedAvg", "AdaFed", "FedProx", *(f"s{k}" for k in range(9))]
    made = of_curves({f"{name}|{split}": [[0.5]] for name in names for split in "xy"}, axes=("strategy", "split"))
    figure = drawing.curves(made, panels(made), Measure())
    assert [axis.get_title() for axis in figure.axes] == ["split: x", "split: y"]
    first, second = ([(line.get_color(), line.get_marker(), line.get_label()) for line in axis.lines] for axis in figure.axes)
    assert first == second
    assert [label for *_, label in first] == names
    assert len(set(first)) == 12


def test_more_lines_are_drawn_by_family_with_the_baseline_in_each():
    known = ["FedAvg", "FedAdam", "AdaFed", "AdaFed, by F1", "Krum", "Trimmed mean", "Fed-Star", "Centralized"]
    names = (*known, *(f"s{k}" for k in range(6)))
    facts = {name: {"reference": "centralized"} if name == "Centralized" else {} for name in names}
    made = of_curves({name: [[0.5]] for name in names}, facts=facts)
    figure = drawing.curves(made, panels(made), Measure())
    assert not figure.legends
    assert [[text.get_text() for text in axis.get_legend().texts] for axis in figure.axes] == labels(figure)
    assert dict(zip([axis.get_title() for axis in figure.axes], labels(figure), strict=True)) == {
        "Averages and server optimizers": ["FedAvg", "FedAdam"],
        "Weights by performance and fairness": ["FedAvg", "AdaFed", "AdaFed, by F1"],
        "Robust to wrong updates": ["FedAvg", "Krum", "Trimmed mean"],
        "Routes between clients": ["FedAvg", "Fed-Star"],
        "Others": ["FedAvg", *(f"s{k}" for k in range(6))],
        "Baselines": ["FedAvg", "Centralized"],
    }
