"""``fl-lightning compare`` and ``report`` as a user types them; runs are processes of their own, as they are for a user."""

import contextlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import yaml
from client_sites import CONFIG as CLIENTS
from command_line import ADAFED, ROOT, completion
from launching import Launched, finish, launch, start
from study_tables import typed
from wandb_file import records

from fl_lightning import ConfigurationError
from fl_lightning.studies import Study
from fl_lightning.studies.collection import read_run
from fl_lightning.studies.execution import Job, context, run_all
from fl_lightning.studies.grid import Run
from fl_lightning.studies.run_table import RunTable
from fl_lightning.studies.settings import SettingsReader

for package in ("mlxtend", "matplotlib", "scipy"):
    pytest.importorskip(package, reason="an extra: pip install 'fl_lightning[compare,digits]'")

SETTINGS = {
    "network": "LeNet",
    "local_epochs": 1,
    "data.datamodule": {"source": "embedded", "batch_size": 10, "eval_batch_size": 20},
    "federation.local.limit_train_batches": 1,
    "trainer": {"limit_val_batches": 1, "max_epochs": 4, "accelerator": "cpu", "logger": False, "enable_model_summary": False},
}


def write_study(over, **more) -> Path:
    path = Path("mine.yaml")
    path.write_text(
        yaml.safe_dump(
            {"base": ADAFED, "settings": SETTINGS, "over": over, "report": {"every": 2, "after": 2}, **more}, sort_keys=False
        )
    )
    return path


@pytest.fixture
def no_figures(monkeypatch):
    """Reports without figures, for tests that do not look at them: drawing takes longer than a run."""
    monkeypatch.setattr("fl_lightning.studies.report.draw_all", lambda *_: {})


def compare(*arguments: object) -> tuple[int, str]:
    return typed("compare", *arguments)


def without_times(table: Path) -> list[str]:
    return [line for line in table.read_text().splitlines() if "seconds" not in line]


def finished(folder: Path) -> int:
    return sum(bool(json.loads(path.read_text())["finished"]) for path in folder.glob("runs/*/study_run.json"))


def begin(*arguments: object) -> Launched:
    """Type ``compare`` in a process of its own."""
    return start(["-m", "fl_lightning", "compare", *map(str, arguments)], Path.cwd())


def kill_when(study: Path, folder: Path, ready) -> None:
    """Start a study, and SIGKILL it without a warning; its runs must be gone soon after."""
    begun = begin("--config", study, "--folder", folder)
    limit = time.monotonic() + 120
    while not ready() and begun.process.is_alive() and time.monotonic() < limit:
        time.sleep(0.02)
    assert begun.process.is_alive(), finish([begun], 10)
    begun.process.kill()
    begun.process.join()
    while _runs_of(folder) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not _runs_of(folder)


def _runs_of(folder: Path) -> list[str]:
    """The processes that print into the logs of a study's runs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):
            target = str(path.readlink())
            if target.startswith(f"{folder.resolve()}/runs/"):
                found.append(target)
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.timeout(600)
def test_a_study_killed_twice_ends_with_the_table_of_an_undisturbed_one(no_figures, tmp_path):
    """Two partitions; killed once in the midst of a run, and once between runs."""
    over = {"partition": {"paper": None, "iid": str(ROOT / "configs" / "data" / "iid.yaml")}}
    study, quiet, killed = write_study(over, seeds=1), tmp_path / "quiet", tmp_path / "killed"
    status, text = compare("--config", study, "--folder", quiet)
    assert status == 0, text
    assert "Study 'mine': 2 runs (2 partition x 1 seeds), 0 of them finished." in text
    kill_when(study, killed, lambda: any(killed.glob("runs/*/checkpoints/last.ckpt")))
    kill_when(study, killed, lambda: finished(killed) >= 1)
    status, text = compare("--config", study, "--folder", killed)
    assert status == 0, text
    assert any(f"{done} of them finished" in text for done in (1, 2))
    assert any(killed.glob("runs/*/csv/version_1"))  # one went on from its checkpoint
    assert without_times(quiet / "table.csv") == without_times(killed / "table.csv")
    before = {path: path.stat().st_mtime_ns for path in killed.glob("runs/*/csv/*/metrics.csv")}
    status, text = compare("--config", study, "--folder", killed)
    assert "2 of them finished" in text
    assert before == {path: path.stat().st_mtime_ns for path in killed.glob("runs/*/csv/*/metrics.csv")}


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_tried_again_when_it_changes(monkeypatch):
    settings = {**SETTINGS, "trainer": {key: value for key, value in SETTINGS["trainer"].items() if key != "logger"}}
    rate = "model.init_args.optimizer.init_args.lr"
    study = write_study({"rate": {"good": None, "bad": {rate: 1e30}}}, seeds=[7], settings=settings)
    with monkeypatch.context() as patched:
        patched.setattr("fl_lightning.studies.report.draw_all", lambda *_: {})
        status, text = compare("--config", study)
    folder = Path("runs/studies/mine")
    assert status == 1
    assert "Failed: 1 of 2 runs. They are not in the table; the next call repeats them." in text
    assert "too large to be summed" in text
    assert "Traceback" not in text
    assert {line.split(",")[2] for line in (folder / "table.csv").read_text().splitlines()[1:]} == {"good"}
    good = (folder / "runs/rate=good,seed=7/study_run.json").stat().st_mtime_ns
    check_wandb(folder / "runs/rate=good,seed=7")

    study = write_study({"rate": {"good": None, "bad": {rate: 0.5}}}, seeds=[7], settings=settings)
    status, text = compare("--config", study)
    assert status == 0, text
    assert "1 of them finished" in text
    assert (folder / "runs/rate=good,seed=7/study_run.json").stat().st_mtime_ns == good
    check_report(study, folder)


def check_wandb(run: Path) -> None:
    """Grouped by the study, named by what was chosen, all settings in it."""
    (path,) = run.glob("wandb/offline-run-*/run-*.wandb")
    *_, record = [r.run for r in records(path) if r.WhichOneof("record_type") == "run"]
    assert (record.run_group, record.display_name) == ("mine", "rate=good,seed=7")
    assert list(record.tags) == ["rate=good"]


def check_report(study: Path, folder: Path) -> None:
    """From the table alone the same tables and pictures come again, in another process."""
    report = ["-m", "fl_lightning", "report", "--config", str(study), "--table", str(folder / "table.csv"), "--out", "again"]
    launch(report, 120, Path.cwd())
    names = sorted(path.name for path in folder.iterdir() if path.suffix in (".html", ".md", ".tex", ".png", ".svg", ".pdf"))
    assert len(names) > 5
    assert names == sorted(path.name for path in Path("again").iterdir())
    for name in set(names) - {"report.html"}:  # in the study's folder, it also shows the runs' configuration
        assert (folder / name).read_bytes() == (Path("again") / name).read_bytes(), name


@pytest.mark.slow
def test_ctrl_c_ends_the_runs_and_says_how_to_go_on():
    begun, folder = begin("--config", write_study({"mu": [0, 1]}, seeds=1)), Path("runs/studies/mine")
    limit = time.monotonic() + 60
    while not any(folder.glob("runs/*/log.txt")) and time.monotonic() < limit:
        time.sleep(0.05)
    os.kill(begun.process.pid, signal.SIGINT)
    text = finish([begun], 100)
    assert begun.process.exitcode == 130
    assert text.endswith("Stopped. Run the same command again to continue.\n")
    assert not _runs_of(folder)


def study_of(monkeypatch, *arguments: str) -> Study:
    """Return the study that ``compare`` with arguments would run."""
    seen: list[Study] = []
    monkeypatch.setattr(Study, "compare", lambda study: seen.append(study) or [])
    assert compare(*arguments)[0] == 0
    return seen[0]


@pytest.mark.slow
def test_settings_that_begin_alike_do_not_displace_each_other(monkeypatch):
    """All of them reach every run, on top of those of the file; the last of two for the same counts."""
    path = write_study({"strategy": ["FedAvg", "AdaFed"]}, seeds=1)
    options = ["--settings.trainer.max_epochs=7", "--settings.trainer.precision", "64-true", "--settings.local_epochs=3"]
    options += ["--settings.trainer.max_epochs=9", "--over.federation.clients_per_round", "[4, 5]"]
    study = study_of(monkeypatch, "--config", str(path), *options, "--over.federation.local.lr_decay=0.5,1")
    assert [axis.name for axis in study.axes] == ["strategy", "federation.clients_per_round", "federation.local.lr_decay"]
    configs = [yaml.safe_load(text) for _, text in study.configurations.values()]
    assert len(configs) == 8
    for config in configs:
        assert (config["trainer"]["max_epochs"], config["trainer"]["precision"]) == (9, "64-true")
        assert (config["trainer"]["limit_val_batches"], config["federation"]["local"]["max_epochs"]) == (1, 3)
    assert {config["federation"]["local"]["lr_decay"] for config in configs} == {0.5, 1.0}


@pytest.mark.parametrize(("given", "seeds"), [("3,5", [3, 5]), ("5,", [5]), ("2", [0, 1])])
def test_seeds_as_typed(given, seeds, monkeypatch):
    """The option of the command, and the same text in a file; what a study does on SIGTERM ends with it."""
    before = signal.getsignal(signal.SIGTERM)
    Path("mine.yaml").write_text(f"base: {ADAFED}\nseeds: {given}\n")
    for arguments in (["--base", ADAFED, "--seeds", given], ["--config", "mine.yaml"]):
        assert [run.seed for run in study_of(monkeypatch, *arguments).runs] == seeds
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_seeds_share_what_was_parsed(monkeypatch, tmp_path):
    """Each run's settings are those that it would have by itself. Paths may be objects."""
    study = Study(Path(ADAFED), {"strategy": ["FedAvg", "AdaFed"]}, seeds="4,0,7", folder=tmp_path)
    assert (study.base, study.folder) == ([ADAFED], tmp_path)
    alone = {run.name: (reader := SettingsReader()).text(reader.read(run)) for run in study.runs}
    parsed: list[Run] = []
    parse = SettingsReader._parse
    monkeypatch.setattr(SettingsReader, "_parse", lambda reader, run: parsed.append(run) or parse(reader, run))
    assert {name: text for name, (_, text) in study.configurations.items()} == alone
    assert [run.setting for run in parsed] == [("FedAvg",), ("AdaFed",)]


@pytest.mark.parametrize("damage", ["half a line", "no header", "half a record"])
def test_a_run_whose_log_is_damaged_is_not_done(damage, tmp_path):
    job = Job("r", tmp_path, "a: 1\n", ())
    log = tmp_path / "csv/version_0/metrics.csv"
    log.parent.mkdir(parents=True)
    log.write_text("epoch,val_accuracy\n0,0.25\n1,0.5\n")
    job.note(finished=True, lines=2)
    assert job.is_finished
    if damage == "half a line":
        log.write_text(log.read_text()[:-2])  # 0.5 would be 0
    elif damage == "no header":
        log.write_text("")
    else:
        (tmp_path / "study_run.json").write_text("[]")
    assert not job.is_finished
    read = read_run(tmp_path, ["*"])
    assert [value for _, _, value in read] == {"half a line": [0.25], "no header": [], "half a record": [0.25, 0.5]}[damage]


@pytest.mark.slow
def test_gpus_are_those_that_the_user_may_see(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,7")
    more = {"trainer.accelerator": "auto"}
    assert Study(ADAFED, settings=more, seeds=1)._places() == [{"CUDA_VISIBLE_DEVICES": name} for name in ("2", "5", "7")]
    assert Study(ADAFED, settings=more | {"trainer.devices": 2}, seeds=1)._places() == [{"CUDA_VISIBLE_DEVICES": "2,5"}]
    assert len(Study(ADAFED, settings=more, seeds=1, jobs=4)._places()) == 4
    assert "CUDA_VISIBLE_DEVICES" not in Study(ADAFED, settings={"trainer.accelerator": "cpu"}, seeds=1)._places()[0]


@pytest.mark.slow
def test_runs_have_the_environment_of_their_study(tmp_path, monkeypatch):
    """Also what a cell of a notebook set after the process had begun from which runs are copied."""
    (earlier := context().Process(target=int)).start()
    earlier.join()
    for name, value in completion(tmp_path / "offers").items():
        monkeypatch.setenv(name, value)
    assert [status for _, status, _ in run_all([Job("a", tmp_path / "a", "{}", ())], [{}])] == [0]
    assert (tmp_path / "offers").read_text().split() == ["--federation.clients_per_round"]


@pytest.mark.slow
def test_runs_done_elsewhere_are_not_run_again(no_figures):
    """Seed 0 came from another machine, here with values that no run has."""
    header = "run,strategy,seed,round,metric,value\n"
    Path("there.csv").write_text(header + "".join(f"r,FedAvg,0,{k},val_accuracy,{2 + k}\n" for k in range(4)))
    study = write_study({"strategy": ["FedAvg"]}, seeds="1,0", report={"every": 2, "after": 2, "also": []})
    status, text = compare("--config", study, "--known", "there.csv")
    assert status == 0, text
    assert "2 runs (1 strategy x 2 seeds), 1 of them finished" in text
    assert "(2 of 2 runs)" in text
    folder = Path("runs/studies/mine")
    assert [path.name for path in folder.glob("runs/*")] == ["strategy=FedAvg,seed=1"]
    table = RunTable.read(folder / "table.csv")
    assert (table.seeds(("FedAvg",)), table.curves(("FedAvg",), "val_accuracy")[0].to_list()) == ([0, 1], [2, 3, 4, 5])
    assert "| FedAvg | " in (folder / "report.md").read_text()
    Path("others.csv").write_text(header.replace("strategy", "route"))
    assert "has the axes route, but the study's are strategy" in compare("--config", study, "--known", "others.csv")[1]


@pytest.mark.slow
def test_clients_with_data_of_their_own_are_compared_by_the_metric_of_their_best_checkpoint(no_figures):
    """Each client's datamodule keeps the seed that it was given."""
    Path("own.yaml").write_text(CLIENTS.replace("out}", "out, logger: false}") + "best_checkpoint: {monitor: val_loss}\n")
    folder = Path("runs/studies/own-strategy")
    (folder / "sweep").mkdir(parents=True)
    (folder / "sweep/earlier.yaml").write_text("")
    status, text = compare("--base", "own.yaml", "--over.strategy", "FedAvg,FedMedian", "--seeds", "5,", "--report.title=Mine")
    assert status == 0, text
    settings = yaml.safe_load((folder / "runs/strategy=FedAvg,seed=5/settings.yaml").read_text())
    assert settings["data"]["clients"]["hospital_b"]["init_args"]["seed"] == 1
    loss = RunTable.read(folder / "table.csv").curves(("FedAvg",), "val_loss").at[0, 5]
    assert re.search(rf"FedAvg,seed=5: \d+ s, val_loss {loss:.4f}", text)
    sweep = yaml.safe_load((folder / "sweep.yaml").read_text())
    assert (sweep["method"], sweep["metric"]) == ("grid", {"name": "val_loss", "goal": "minimize"})
    assert sweep["command"] == ["fl-lightning", "fit", "${args}"]
    assert [Path(file) for file in sweep["parameters"]["config"]["values"]] == sorted(folder.glob("sweep/*"))
    assert yaml.safe_load((folder / "sweep/strategy=FedAvg,seed=5.yaml").read_text())["seed_everything"] == 5
    written = (folder / "report.md").read_text()
    assert typed("report", "--name=own-strategy", "--out=again", "--report.title=Mine")[0] == 0
    assert Path("again/report.md").read_text() == written
    (folder / "report.md").unlink()
    typed("report", folder)  # as its study says
    assert (folder / "report.md").read_text() == written
    assert "is `val_loss`" in written


def test_a_report_of_several_tables():
    header, row = "run,strategy,seed,round,metric,value\n", "r,FedAvg,{},{},val_accuracy,{}\n"
    for seed, value in ((0, 0.25), (1, 0.75)):
        Path(f"{seed}.csv").write_text(header + "".join(row.format(seed, k, value) for k in range(3)))
    assert typed("report", "--table=0.csv", "--known=1.csv", "--out=joined", "--report.every=1")[0] == 0
    assert "50.00 ± 35.36" in Path("joined/report.md").read_text()


@pytest.mark.slow
def test_a_study_at_work_is_left_alone(monkeypatch):
    study, second = Study(ADAFED, seeds=1), Study(ADAFED, seeds=1)

    def meanwhile(*_: object) -> None:
        with pytest.raises(ConfigurationError, match="Wait until it has finished, stop it"):
            second.compare()
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "_run_missing", meanwhile)
    with pytest.raises(KeyboardInterrupt):
        study.compare()


def test_the_live_line_on_a_terminal(tmp_path, capsys, monkeypatch):
    jobs = [Job(name, tmp_path / name, "", ()) for name in ("one", "two")]
    jobs[0].folder.mkdir()
    jobs[0].log.write_text("Seed set to 0\nRound 0/3: val_accuracy 0.1\nRound 1/3: val_accuracy 0.2\nsomething\n")
    assert [job.last_words() for job in jobs] == ["something", "no log"]
    monkeypatch.setattr("fl_lightning.studies.study.run_all", lambda missing, places, tell: iter([tell(jobs)][1:]))
    for is_terminal, shown in ((False, []), (True, ["one: Round 1/3: val_accuracy 0.2   two: starting"])):
        monkeypatch.setattr(sys.stdout, "isatty", lambda own=is_terminal: own, raising=False)
        Study(ADAFED, seeds=1)._run_missing(jobs)
        assert [line for line in re.split("[\r\n]+", capsys.readouterr().out) if line.startswith("one")] == shown
