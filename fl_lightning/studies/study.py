"""A study: algorithms x data x seeds, from one file to one table and its report."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import Namespace
from tqdm import tqdm

from fl_lightning.cli.ranks import on_cpu
from fl_lightning.errors import ConfigurationError, FederationError, require
from fl_lightning.functional.metric_names import VALIDATION
from fl_lightning.studies.collection import LOGS, read_run
from fl_lightning.studies.execution import Job, run_all
from fl_lightning.studies.grid import Axis, Run, folder_name, full_names, read_axes, span
from fl_lightning.studies.leave_one_out import EVERY, measured, site_axis
from fl_lightning.studies.panels import REPORT, ReportOptions, panels
from fl_lightning.studies.report import ON_TEST_SET, print_files, require_logged, write_report
from fl_lightning.studies.run_table import Row, RunTable
from fl_lightning.studies.set_up import code_of, facts, named_settings, on_test_set, set_up
from fl_lightning.studies.settings import SettingsReader
from fl_lightning.studies.tables import final_table, finals, paired_table
from fl_lightning.utilities.argument_types import ChecksTypes
from fl_lightning.utilities.folder_lock import lock_folder
from fl_lightning.utilities.machine import cores

KEPT = (*VALIDATION, "test_*", "client_share/*", "client_comparison/*", "federation/*", "partition/*")
"""Patterns of the metrics that go into the table by default."""
_LONGEST_TAG = 64
"""Largest number of characters of a W&B tag."""


class Study(ChecksTypes):
    """Run every combination of the axes' choices with every seed, and report the results.

    A finished run is repeated only if its settings have changed. An interrupted run resumes from its last checkpoint. A failed
    run is reported at the end, and repeated by the next call.

    Args:
        base: configuration file of every run, or several; later ones override earlier ones.
        over: the axes by name. An axis is a list of values of one setting, such as ``strategy: [FedAvg, AdaFed]``; a list of
            configuration files on top of the base; or choices by name, each a file, settings by their full names,
            several of both, or null for the base as it is.
        seeds: number of seeds (0, 1, ...), or the seeds themselves: a list, or numbers separated by commas, such as 3,5. A seed
            sets ``seed_everything``, ``federation.seed`` and the partitioner's.
        settings: settings of every run, by their full names.
        name: name of the study and of its W&B group; by default that of its file, or of base and axes without a file.
        folder: folder for the runs, the table and the report; ``runs/studies/<name>`` by default.
        jobs: number of runs at a time: ``auto`` is one for each GPU, or one for each core on a CPU.
        keep: patterns of the metrics that go into the table.
        known: run tables of this study from elsewhere, such as another machine; their runs are not repeated.
        report: what the report shows.
        note: sentence to print at the end, such as what to compare the result with.
        leave_one_out: whether to repeat each run for each client, training on all others and testing at the one; or the names
            of the clients to leave out. The report then compares by the score at the client that was left out.

    Raises:
        ConfigurationError: for settings that no run can have.
    """

    def __init__(
        self,
        base: str | list[str],
        over: dict | None = None,  # type: ignore[type-arg]  # the parser would build classes in values of Any
        seeds: int | list[int] | str = 3,
        settings: dict | None = None,  # type: ignore[type-arg]
        name: str | None = None,
        folder: str | None = None,
        jobs: int | Literal["auto"] = "auto",
        keep: list[str] = list(KEPT),  # noqa: B006  a default for the parser, which copies it
        known: str | list[str] | None = None,
        report: ReportOptions = ReportOptions(),  # noqa: B008
        note: str | None = None,
        leave_one_out: bool | list[str] = False,
    ) -> None:
        self.base = _paths(base)
        self.seeds = _seeds(seeds)
        require(bool(self.seeds) and min(self.seeds) >= 0, "seeds", "at least 1, or numbers of at least 0", seeds)
        require(len(set(self.seeds)) == len(self.seeds), "seeds", "numbers that differ", seeds)
        require(jobs == "auto" or (isinstance(jobs, int) and jobs >= 1), "jobs", "at least 1, or auto", jobs)
        self.settings = dict(full_names(settings or {}))
        self.axes: list[Axis] = read_axes(over or {})
        require(bool(self.base), "base", "a configuration of 'fl-lightning fit'", base)
        self._measured: tuple[str, str] | None = None
        if leave_one_out:
            self._leave_one_out(leave_one_out)
        self.name = name or folder_name(["-".join([Path(self.base[-1]).stem, *(axis.name for axis in self.axes)])])
        self.folder = Path(folder or f"runs/studies/{self.name}")
        self.table_path = self.folder / "table.csv"
        self.jobs, self.note = jobs, note
        self.keep, self._report = keep, report
        if self.axes:
            report.check(self.axes[0].name, [choice.name for choice in self.axes[0].choices])
        self.known = RunTable.join([axis.name for axis in self.axes], list(map(Path, _paths(known or []))))

    def _leave_one_out(self, given: bool | list[str]) -> None:
        """Add the axis of the clients that are left out, and have each run evaluate them."""
        self.settings = {EVERY: 1, **self.settings}
        config = self._reader.read(span(self.axes, self.seeds, self.base, self.settings)[0])
        self.axes = [*self.axes, site_axis(given, config, self.settings, self.axes)]
        self._measured = measured(config)

    @cached_property
    def _reader(self) -> SettingsReader:
        return SettingsReader()

    @cached_property
    def runs(self) -> list[Run]:
        """All runs of the study."""
        return span(self.axes, self.seeds, self.base, self.settings)

    @cached_property
    def report(self) -> ReportOptions:
        """What the report shows; without a metric in it, that of the first run's best checkpoint."""
        best = self.configurations[self.runs[0].name][0].best_checkpoint
        return self._report.by_default(*(self._measured or (best.monitor, best.mode)))

    @cached_property
    def configurations(self) -> dict[str, tuple[Namespace, str]]:
        """Each run's whole configuration, parsed and as YAML.

        Raises:
            ConfigurationError: if one is wrong, or two are the same.
        """
        found: dict[str, tuple[Namespace, str]] = {}
        same: dict[str, str] = {}
        for run in self.runs:
            config = self._reader.read(run)
            if self._measured and not config.federation.enabled:
                raise ConfigurationError(
                    f"The run '{run.name}' has 'federation.enabled' false, but 'leave_one_out' tests the model of a federation "
                    "at the client that was left out. Remove this choice, or 'leave_one_out'."
                )
            found[run.name] = config, self._reader.text(config)
            twin = same.setdefault(found[run.name][1], run.name)
            if twin != run.name:
                raise ConfigurationError(
                    f"The runs '{twin}' and '{run.name}' have the same settings. Let each choice of an axis change a setting "
                    "that later axes do not change."
                )
        return found

    def compare(self) -> list[Job]:
        """Run what is missing, write the table and the report, and print where they are.

        Returns:
            The runs that failed.
        """
        jobs = [self._job(run) for run in self.runs]
        with lock_folder(self.folder, "'compare'", "folder"):
            sweep = self._write_sweep()
            try:
                failed = self._run_missing(jobs)
            except BaseException:  # a study that is stopped still reports its finished runs
                with contextlib.suppress(FederationError):
                    self._collect(jobs)
                raise
            if failed:
                print(f"Failed: {len(failed)} of {len(jobs)} runs. They are not in the table; the next call repeats them.")
            for job in failed:
                print(f"  {job.name}: {job.last_words()} (log: {job.log})")
            self._collect(jobs)
        print(f"The same study as a W&B sweep: {sweep}")
        self._show()
        return failed

    def _show(self) -> None:
        """Print the result of a study that compares on one axis, and the note; larger studies have their page."""
        if self.table_path.exists():
            table, measure = RunTable.read(self.table_path), self.report.measure
            panel, *others = panels(table, self.report.names, self.report.baseline)
            if not others:
                tables = final_table(table, panel, [measure]), paired_table(finals(table, panel, measure), panel, measure)
                print("", *(one.markdown() for one in tables if one is not None), sep="\n")
            if on_test_set(table.facts.values()) and any(axis.is_numeric for axis in self.axes):
                print(f"Warning: {ON_TEST_SET}")
        if self.note:
            print(self.note)

    def _run_missing(self, jobs: Sequence[Job]) -> list[Job]:
        """Run what is missing, and return the runs that failed."""
        known = {run.name for run in self.runs if (run.setting, run.seed) in self.known.runs}
        missing = [job for job in jobs if not job.is_finished and job.name not in known]
        places = self._places()[: max(1, len(missing))]
        spans = " x ".join([f"{len(axis.choices)} {axis.name}" for axis in self.axes] + [f"{len(self.seeds)} seeds"])
        print(f"Study '{self.name}': {len(jobs)} runs ({spans}), {len(jobs) - len(missing)} of them finished.", flush=True)
        if missing:
            print(f"Running {len(missing)}, {len(places)} at a time.", flush=True)
        failed: list[Job] = []
        live = tqdm(bar_format="{desc}", disable=None, file=sys.stdout, leave=False)  # one line, on a terminal alone

        def show(running: Sequence[Job]) -> None:
            text = "   ".join(f"{job.name}: {job.progress()}" for job in running)
            live.set_description_str(text[: shutil.get_terminal_size().columns - 1])

        for number, (job, status, seconds) in enumerate(run_all(missing, places, show), len(jobs) - len(missing) + 1):
            live.clear()
            failed += [job] if status else []
            said = f"failed (exit status {status}): {job.last_words()}" if status else self._came_to(job)
            print(f"[{number}/{len(jobs)}] {job.name}: {seconds:.0f} s, {said}", flush=True)
        return failed

    def _came_to(self, job: Job) -> str:
        last = {metric: value for _, metric, value in sorted(read_run(job.folder, ["*"]), key=lambda logged: logged[0])}
        metric = self.report.measure.name
        require_logged(metric, last, f"the run '{job.name}'")
        return f"{metric} {last[metric]:.4f}"

    def _collect(self, jobs: Sequence[Job]) -> None:
        """Write the table and the report of the finished runs, in the order of the axes."""
        done = {job.name: job.folder for job in jobs if job.is_finished}
        order = {setting: k for k, setting in enumerate(dict.fromkeys(run.setting for run in self.runs))}
        elsewhere = {(run.setting, run.seed) for run in self.runs if run.name not in done}
        rows, known = [row for row in self.known.rows() if (row.setting, row.seed) in elsewhere], dict(self.known.facts)
        configs = {name: config.as_dict() for name, (config, _) in self.configurations.items()}
        named = named_settings(configs.values(), self._reader.defaults().as_dict())
        keep = [*self.keep, self.report.measure.name, *self.report.also, *self.report.draw]
        for run in (run for run in self.runs if run.name in done):
            folder, config = done[run.name], configs[run.name]
            rows += [Row(run.name, run.setting, run.seed, *logged) for logged in read_run(folder, keep)]
            known[run.name] = facts(config, self._measured) | code_of(folder) | set_up(config, named, folder)
        if rows:
            rows.sort(key=lambda row: (order[row.setting], row.seed))
            table = RunTable([axis.name for axis in self.axes], rows, known)
            table.write(self.table_path)
            print(f"Table: {self.table_path} ({len(table)} of {len(jobs)} runs)")
            baseline = self.report.baseline or (self.axes[0].choices[0].name if self.axes else None)
            options = replace(self.report, baseline=baseline)
            (self.folder / REPORT).write_text(yaml.safe_dump({"report": asdict(options)}), encoding="utf-8")
            table = RunTable.read(self.table_path)  # so that the report can be written from the file again
            print_files(write_report(table, options, self.folder, self.name))

    def _write_sweep(self) -> Path:
        """Write ``sweep.yaml``, the same study as a W&B grid over the runs' configurations in the folder ``sweep``."""
        files, path, measure = self.folder / "sweep", self.folder / "sweep.yaml", self.report.measure
        shutil.rmtree(files, ignore_errors=True)  # files of an earlier version of the study
        files.mkdir()
        for name, (_, text) in self.configurations.items():
            (files / f"{name}.yaml").write_text(text, encoding="utf-8")
        configuration = {
            "name": self.name,
            "program": "fl-lightning",
            "method": "grid",
            "metric": {"name": measure.name, "goal": "maximize" if measure.higher else "minimize"},
            "parameters": {"config": {"values": [str(files / f"{name}.yaml") for name in self.configurations]}},
            "command": ["fl-lightning", "fit", "${args}"],
        }
        head = f"# wandb sweep {path}, then on every machine: wandb agent <what that prints>\n"
        path.write_text(head + yaml.safe_dump(configuration, sort_keys=False), encoding="utf-8")
        return path

    # ---------------------------------------------------------------- how a run is started

    def _job(self, run: Run) -> Job:
        config, text = self.configurations[run.name]
        folder = self.folder / "runs" / run.name
        loggers = _loggers(config, run, self.name, [axis.name for axis in self.axes], folder)
        arguments = [f"--trainer.default_root_dir={folder}", f"--trainer.logger={json.dumps(loggers)}", "--test_best=true"]
        if config.trainer.enable_progress_bar is None and not config.federation.enabled:  # a federation prints a line per round
            arguments.append("--trainer.enable_progress_bar=false")
        if config.trainer.devices in (None, "auto") and on_cpu(config.trainer.accelerator):
            arguments.append("--trainer.devices=1")  # the cores are for other runs
        return Job(run.name, folder, text, tuple(arguments), _ranks(config))

    def _places(self) -> list[dict[str, str]]:
        """Return the environments of the runs that may run at the same time."""
        configs = [config for config, _ in self.configurations.values()]
        graphics = _gpus() if all(config.trainer.accelerator in ("auto", "gpu", "cuda") for config in configs) else []
        ranks = max(map(_ranks, configs))
        if graphics:
            ranks = min(ranks, len(graphics))
            groups = [graphics[k : k + ranks] for k in range(0, len(graphics) - ranks + 1, ranks)]
            count = len(groups) if self.jobs == "auto" else self.jobs
            return [{"CUDA_VISIBLE_DEVICES": ",".join(groups[place % len(groups)])} for place in range(count)]
        count = max(1, cores() // ranks) if self.jobs == "auto" else self.jobs
        # One thread each: their number changes the last bits, so it must not depend on how many runs there are at a time.
        return [{"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")} for _ in range(count)]


def _ranks(config: Namespace) -> int:
    """Return the number of processes of a run."""
    devices = config.trainer.devices
    return len(devices) if isinstance(devices, list) else int(devices) if str(devices).isdigit() else 1


def _gpus() -> list[str]:
    """Return the GPUs that this process may see, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    allowed, count = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count()
    return (allowed.split(",") if allowed else list(map(str, range(count))))[:count]


def _paths(given: Any) -> list[str]:
    """Return one path, or a list of them, as texts."""
    return list(map(str, given if isinstance(given, list | tuple) else [given]))


def _seeds(given: int | list[int] | str) -> list[int]:
    if isinstance(given, int):
        return list(range(given))
    parts = given.split(",") if isinstance(given, str) else given
    try:
        return [int(part) for part in parts if part != ""]  # 5, is seed 5 alone
    except ValueError:
        raise ConfigurationError(
            f"'seeds' must be a number of seeds, or the seeds themselves, such as 3,5, but is {given!r}."
        ) from None


def _loggers(config: Namespace, run: Run, study: str, axes: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """Return the user's loggers, or W&B grouped by study and named by the settings; and CSV, from which tables are made."""
    csv: dict[str, Any] = {"save_dir": str(folder), "name": LOGS, "flush_logs_every_n_steps": 1}
    ours: list[dict[str, Any]] = [{"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": csv}]
    given = config.trainer.logger
    if given is False:
        return ours
    if given is None or given is True:
        tags = [f"{axis}={choice}"[:_LONGEST_TAG] for axis, choice in zip(axes, run.setting, strict=True)]
        settings = {"project": "fl_lightning", "group": study, "name": run.name, "save_dir": str(folder), "tags": tags}
        return [{"class_path": "lightning.pytorch.loggers.WandbLogger", "init_args": settings}, *ours]
    own = given if isinstance(given, list) else [given]
    others = [logger for logger in own if "CSVLogger" not in logger.class_path]
    return [*(logger.as_dict() for logger in others), *ours]
