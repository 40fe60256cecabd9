"""What readers of a study are told: names, baselines, what cannot be compared, and lines that they can tell apart."""

import subprocess
from itertools import combinations

import pytest
from command_line import ADAFED, ROOT
from study_tables import runs_of as table

from fl_lightning.strategies import ALGORITHMS
from fl_lightning.studies import Study
from fl_lightning.studies import figures as drawing
from fl_lightning.studies.figures import MOST_STYLES, style, styles
from fl_lightning.studies.names import family, partition_in_words, readable
from fl_lightning.studies.panels import Measure, panels
from fl_lightning.studies.set_up import code_of, facts
from fl_lightning.utilities.source_version import source_version

pytest.importorskip("matplotlib", reason="figures are an extra: pip install 'fl_lightning[compare]'")
pytest.importorskip("scipy", reason="paired tests are an extra: pip install 'fl_lightning[compare]'")

# ------------------------------------------------------------------ names


def test_a_file_of_an_algorithm_has_its_name_and_one_that_the_user_wrote_stays():
    for group, algorithms in ALGORITHMS.items():
        for one in algorithms:
            assert readable(one.config) == one.name
            assert family(one.name) == family(f"{one.name}, half of it") == group
    for own in ("FedAvg", "AdaFed, weights only", "none", "8 bits", "clients, 0.1", "SGD(lr=0.1)", "0.5", "KRUM"):
        assert readable(own) == own


def test_partitions_in_words():
    counts = {"class_path": "TablePartitioner", "init_args": {"counts": [[1, 2], [3, 4], [5, 6]], "seed": 3}}
    assert partition_in_words(counts) == "given counts of each class, 3 clients"
    own = {"class_path": "my.Halves", "init_args": {"share": 0.5, "seed": 1, "names": None, "strict": True}}
    assert partition_in_words(own) == "Halves, share 0.5"
    assert partition_in_words(None) == "one dataset for each client"


# ------------------------------------------------------------------ what is not comparable


@pytest.mark.slow
def test_the_facts_of_a_run_come_from_its_configuration():
    files = {
        name: str(ROOT / "configs" / f"{name}_mnist.yaml") for name in ("centralized", "local_only", "last_client", "fedper")
    }
    choices = {
        "base": None,
        "embedded": {"data.datamodule.source": "embedded", "data.datamodule.batch_size": 3},
        "limited": {"trainer.limit_val_batches": 2},
        "skew": str(ROOT / "configs" / "data" / "label_skew.yaml"),
        **files,
    }
    study = Study(ADAFED, {"only": choices}, seeds=1)
    found = {run.setting[0]: facts(study.configurations[run.name][0].as_dict()) for run in study.runs}
    made = {name: [f"{kind}/{text}" for kind, text in own.items()] for name, own in found.items()}
    partition, server = "given counts of each class, 6 clients", "server_set/the validation set of MNISTDataModule"
    assert made["base"] == [f"partition/{partition}", "training/100 %", f"{server} (source auto)"]
    assert made["embedded"][2] == f"{server} (source embedded)"
    assert made["limited"][2] == f"{server} (source auto), limited to 2 batches"
    parts = "the clients' own test parts (20 % each; Dirichlet, beta 0.5, 10 clients)"
    assert made["skew"][1:] == ["training/80 %", f"client_set/{parts}", f"server_set/{parts}, together"]
    complete = f"the clients' own test parts (20 % each; {partition}), each with its client's complete model"
    assert made["fedper"][-1] == f"server_set/{complete}"
    for name, kind in (("centralized", "centralized"), ("local_only", "local only"), ("last_client", "last client")):
        assert made[name][-1] == f"reference/{kind}"


def test_the_code_of_a_run_is_what_it_wrote_into_its_configuration(tmp_path):
    for seed, first in enumerate(["# fl_lightning==0.2.0 (commit 60b2303)", "# fl_lightning==0.1.0", "seed_everything: 1"]):
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "config.yaml").write_text(f"{first}\ntrainer: {{}}\n")
    known = [code_of(tmp_path / name) for name in ("0", "1", "2", "none")]
    assert known == [{"code": "0.2.0 (commit 60b2303)"}, {"code": "0.1.0"}, {}, {}]


def test_the_commit_of_a_checkout(tmp_path):
    """What git itself says; without a checkout, the release alone."""

    def git(*arguments: str) -> str:
        author = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        return subprocess.run(["git", *author, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    def version() -> str:
        source_version.cache_clear()
        return source_version("1.2.3", tmp_path)

    assert version() == "1.2.3"
    git("init", "--quiet")
    (tmp_path / "code.py").write_text("1")
    git("add", "code.py")
    git("commit", "--quiet", "-m", "first")
    commit = git("rev-parse", "HEAD")[:7]
    assert version() == f"1.2.3 (commit {commit})"
    (tmp_path / "code.py").write_text("2")
    assert version() == f"1.2.3 (commit {commit}-dirty)"
    (tmp_path / ".git" / "HEAD").write_text("no reference")
    assert version() == "1.2.3"
    source_version.cache_clear()


# ------------------------------------------------------------------ lines


def test_any_two_lines_differ_also_without_colour():
    """Any two styles differ in two of colour, dash and marker: what a reader cannot see of one is in another."""
    assert MOST_STYLES == 40
    for one, other in combinations([style(k) for k in range(MOST_STYLES)], 2):
        assert sum(getattr(one, part) != getattr(other, part) for part in ("colour", "dash", "marker")) >= 2


def test_an_algorithm_looks_the_same_in_every_study():
    one = styles(["FedAvg", "AdaFed", "mine", "Krum"])
    other = styles(["Krum", "yours", "AdaFed", "FedProx", "FedAvg"])
    for name in ("FedAvg", "AdaFed", "Krum"):
        assert one[name] == other[name]
    assert len({(s.colour, s.dash, s.marker) for s in one.values()}) == 4
    every = styles([one.name for group in ALGORITHMS.values() for one in group])
    assert len({(s.colour, s.dash, s.marker) for s in every.values()}) == len(every)


def test_twelve_strategies_are_in_one_panel_and_look_the_same_in_all():
    names = ["FedAvg", "AdaFed", "FedProx", *(f"s{k}" for k in range(9))]
    made = table(
        {f"{name}|{split}": (k / 20, []) for k, name in enumerate(names) for split in ("x", "y")}, ("strategy", "split")
    )
    figure = drawing.curves(made, panels(made), Measure())
    assert [axis.get_title() for axis in figure.axes] == ["split: x", "split: y"]
    first, second = ([(line.get_color(), line.get_marker(), line.get_label()) for line in axis.lines] for axis in figure.axes)
    assert first == second
    assert [label for *_, label in first] == names
    assert len(set(first)) == 12


def test_more_lines_are_drawn_by_family_with_the_baseline_in_each():
    known = ["FedAvg", "FedAdam", "AdaFed", "AdaFed, by F1", "Krum", "Trimmed mean", "Fed-Star", "Centralized"]
    names = [*known, *(f"s{k}" for k in range(6))]
    made = table({name: (k / 20, []) for k, name in enumerate(names)})
    figure = drawing.curves(made, panels(made), Measure())
    shown = {axis.get_title(): [line.get_label() for line in axis.lines] for axis in figure.axes}
    assert shown == {
        "Averages and server optimizers": ["FedAvg", "FedAdam"],
        "Weights by performance and fairness": ["FedAvg", "AdaFed", "AdaFed, by F1"],
        "Robust to wrong updates": ["FedAvg", "Krum", "Trimmed mean"],
        "Routes between clients": ["FedAvg", "Fed-Star"],
        "Others": ["FedAvg", *(f"s{k}" for k in range(6))],
        "Baselines": ["FedAvg", "Centralized"],
    }


def test_the_partition_is_in_the_title():
    made = table({"A": (0.5, ["partition/IID, 3 clients"]), "B": (0.6, ["partition/IID, 3 clients"])})
    figure = drawing.curves(made, panels(made), Measure())
    assert figure.get_suptitle() == "Partition: IID, 3 clients"
    runs = {f"{a}|{split}": (0.5, [f"partition/{split}, 3 clients"]) for split in ("IID", "shards") for a in "AB"}
    made = table(runs, ("algorithm", "split"))
    figure = drawing.curves(made, panels(made), Measure())
    assert figure.get_suptitle() == ""
    assert [axis.get_title() for axis in figure.axes] == [
        f"split: {split}\npartition: {split}, 3 clients" for split in ("IID", "shards")
    ]
