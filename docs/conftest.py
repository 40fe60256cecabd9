"""Run what the pages show: Python blocks as they are, commands on little data. ``make test-all`` calls this."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from string import Template

import pytest
import torch
import wandb
from command_line import OTHER_TASKS, QUIET, ROOT, SMALL, also
from sybil import Document, Example, Region, Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

from fl_lightning.cli import command
from fl_lightning.config.files import find

ELSEWHERE = {
    "make": "CI runs it",
    "pip": "an installation",
    "git": "an installation",
    "python": "a tool with tests of its own",
    "bash": "a tool with tests of its own",
    "eval": "a setting of the shell",
    ".": "an installation",
    "pytest": "checks for a GPU",
    "torchrun": "several machines: tests/server/test_processes.py runs two nodes",
    "srun": "several machines: tests/server/test_processes.py runs two nodes",
    "export": "tests/options/test_personal.py runs it",
    "serve": "tests/flower/test_flower.py runs it",
    "register": "tests/flower/test_flower.py runs it",
    "sites": "tests/flower/test_flower.py runs it",
    "site": "tests/flower/test_flower.py runs it",
    "compare": "tests/studies/test_study_choices.py runs every study",
    "report": "tests/studies/test_compare.py runs it",
}
"""Commands that are not run here, by their first word or subcommand, with the reason."""
NEEDS = {
    "photos": "your own images",
    "domains_images": "the images that tools/three_domains.py writes",
    "data/table": "your own tables",
    "data/cells": "your own images",
    "FlowerPool": "sites: tests/flower/test_flower.py runs it",
    "config.yaml": "the files of a run or a project that exist by then",
    "lora.yaml": "transformers and peft: tests/third_party runs it",
    "best_3.ckpt": "a checkpoint that the command before it writes",
    "arrivals.jsonl": "the file of a run with sites: tests/flower/test_asynchronous_sites.py replays one",
    "norm_bounded": "tests/project/test_docs.py runs it",
}
"""Words in a command that need something the page does not create."""
ONE_RUN = ("after_training.md", "schema.md")
"""Pages whose commands and blocks work on the files that the page creates before."""


def commands(document: Document) -> Iterator[Region]:
    """Yield each command of the page's shell blocks, with the block's variables filled in."""
    for block in re.finditer(r"^```(?:sh|bash)\n(.*?)^```", document.text, re.MULTILINE | re.DOTALL):
        variables: dict[str, str] = {}
        for line in re.finditer(r"^(?:[^\n]|(?<=\\)\n)+$", block[1], re.MULTILINE):
            text = re.sub(r"\s+#.*", "", line[0].replace("\\\n", " ")).strip()
            found = re.fullmatch(r'(\w+)="(.*)"', text)
            if found:
                variables[found[1]] = found[2]
            elif text and not text.startswith(("#", "export ")):
                words = shlex.split(Template(text.partition(" && ")[0]).safe_substitute(variables))
                yield Region(block.start(1) + line.start(), block.start(1) + line.end(), words, run)


def files(document: Document) -> Iterator[Region]:
    """Yield each code block whose caption is the name of a file, which is written."""
    for block in re.finditer(r"^```\{code-block\} \w+\n:caption: (\S+)\n(.*?)^```", document.text, re.MULTILINE | re.DOTALL):
        yield Region(block.start(), block.end(), (block[1], block[2]), write)


def write(example: Example) -> None:
    """Write a file that a page shows."""
    name, text = example.parsed
    Path(name).write_text(text, encoding="utf-8")


def run(example: Example) -> None:
    """Run one command on little data, in a folder of its own."""
    words: list[str] = example.parsed
    first = words[1] if words[0] == "fl-lightning" else words[0]
    needs = {} if Path(example.path).name in ONE_RUN else NEEDS
    reason = ELSEWHERE.get(first) or next((why for word, why in needs.items() if any(word in one for one in words)), None)
    if reason:
        pytest.skip(reason)
    assert words[0] == "fl-lightning", f"Unknown command: {words}"
    more = little(words) if first == "fit" and not {"--help", "--print_config"} & set(words) else []
    print("fl-lightning", *words[1:], *more)
    status = typed([*words[1:], *more])
    resumes = "--ckpt_path" in words
    assert status == (1 if resumes else 0), f"{shlex.join(words)} ended with {status}"  # nothing to resume in an empty folder


def little(words: list[str]) -> list[str]:
    """Return the options that make a fit small: the same that the tests use."""
    named = [find(value) for option, value in pairwise(words) if option == "--config"]
    if named[0].stem in OTHER_TASKS:
        own = OTHER_TASKS[named[0].stem][1]
        return [*(flag for flag in QUIET if flag not in own), *own, "--trainer.max_epochs=1", "--trainer.logger=false"]
    given = [word for word in words if word.startswith("--")]
    small = [flag for flag in [*SMALL, *also(named[0].stem)] if flag.partition("=")[0] not in given]
    ranks = ["--trainer.devices=1"] if "--trainer.devices" in given else []  # tests/server/test_processes.py has several
    return [*small, *ranks, "--trainer.max_epochs=1", "--trainer.logger=false"]


def typed(arguments: list[str]) -> int:
    """Return the exit status of a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fl-lightning", *arguments])
        try:
            return int(command.main() or 0)
        except SystemExit as end:
            return int(end.code or 0)
        finally:
            wandb.teardown()


@pytest.fixture(scope="module")
def in_a_folder_of_its_own(tmp_path_factory):
    """Run a page where nothing of the repository is written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        patch.setenv("WANDB_MODE", "disabled")
        patch.syspath_prepend(str(ROOT / "docs" / "examples"))
        torch.set_num_threads(1)
        yield


@pytest.fixture
def fresh_folder(in_a_folder_of_its_own, request, tmp_path, monkeypatch):
    """Run each block in a folder of its own: runs of one page must not meet."""
    if request.node.path.name not in ONE_RUN:
        monkeypatch.chdir(tmp_path)


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser(), commands, files],
    patterns=["*.md"],
    excludes=["api/*", "_build/*", "notebooks/*"],
    fixtures=["fresh_folder"],
).pytest()
