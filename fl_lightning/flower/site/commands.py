"""What a site's staff decides and reads: ``fl-lightning site approve``, ``withdraw`` and ``audit``."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.envelope import printable
from fl_lightning.flower.site.audit import CUT, digests, read_log
from fl_lightning.flower.site.budget import SiteBudget
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.settings import read_settings
from fl_lightning.flower.site.store import SiteRecord, agreed, approve, asked, digest_of
from fl_lightning.reporting.tables import text_table
from fl_lightning.utilities.argument_parser import ArgumentParser


def main(command: str, arguments: Sequence[str]) -> None:
    """Run one of the commands.

    Raises:
        ConfigurationError: if the arguments do not fit, or the folder is not a site's.
    """
    run, text = _COMMANDS[command]
    parser = ArgumentParser(prog=f"fl-lightning site {command}", description=text)
    if command == "budget":
        parser.add_argument("--data", required=True, help="The data.yaml of this site.")
    else:
        parser.add_argument("--name", help="The name of the site, whose folder is site_NAME.")
        parser.add_argument("--folder", help="The folder of the site, if it is another one.")
    if command == "approve":
        parser.add_argument("federation", nargs="?", help="The id of the federation.")
        parser.add_argument("settings", nargs="?", help="The digest of its settings.")
        parser.add_argument("--sites", action="store_true", help="Agree to a sum over other sites than before.")
        parser.add_argument("--yes", action="store_true", help="Agree without the question, for scripts.")
    elif command == "withdraw":
        parser.add_argument("federation", help="The id of the federation.")
    elif command == "audit":
        parser.add_argument("--federation", help="Print this one only.")
        parser.add_argument("--witness", help="The file of this site in the folder 'witness' of the server, to compare with.")
    run(parser.parse_args(arguments))


def _folder(parsed: argparse.Namespace) -> Path:
    if not (parsed.folder or parsed.name):
        raise ConfigurationError("Which site? Pass '--name', or '--folder' with the folder that 'fl-lightning site' uses.")
    folder = Path(parsed.folder or f"site_{parsed.name}")
    if not (folder / "audit.jsonl").exists():
        raise ConfigurationError(f"'{folder}' is not the folder of a site that has had a message. Pass it with '--folder'.")
    return folder


def _id(text: str | None) -> str:
    if text is None or not re.fullmatch(r"[0-9a-f]{32}", text):
        raise ConfigurationError(f"The federation is {text!r}, but must be 32 hexadecimal digits, as in the message or log.")
    return text


# ---------------------------------------------------------------- to agree and to leave


def _approve(parsed: argparse.Namespace) -> None:
    """Print what the staff agrees to, ask, and keep the answer."""
    folder = _folder(parsed)
    if parsed.sites:
        _approve_sum(folder, parsed.yes)
        return
    federation = _id(parsed.federation)
    settings, before = asked(folder, federation), agreed(folder, federation)
    if not settings or digest_of(settings) != parsed.settings:
        raise ConfigurationError(
            f"No server has sent settings with the digest {parsed.settings!r} for this federation. Copy it from the message."
        )
    lines, differ = _json_lines(settings), ""
    if before:
        differ = " that differ from those to which this site agreed before"
        lines = list(difflib.unified_diff(_json_lines(before), lines, lineterm="", n=2))[2:] or ["None: they are the same."]
    print(f"The settings of federation {federation}{differ}:", *lines, sep="\n")
    _require_yes(parsed.yes, "Agree to them?")
    approve(folder, federation, settings)
    print(f"Agreed to federation {federation}.")


def _approve_sum(folder: Path, yes: bool) -> None:
    from fl_lightning.options.secure_aggregation.record import SignedLists

    lists = SignedLists(folder)
    before, asked, computed = lists.asked()
    if not asked:
        raise ConfigurationError("This site has refused no sum over other sites since the last one that it took part in.")
    print(f"This site's update was in a sum over {', '.join(before)}.")
    print(f"The server asks for one over {', '.join(map(printable, asked))}.")
    print(f"A server that has both could compute the update of {', '.join(map(printable, computed))}.")
    _require_yes(yes, "Agree to it?")
    lists.agree(asked)  # to what was shown, whatever the server has asked for meanwhile
    print("Agreed.")


def _json_lines(settings: str) -> list[str]:
    return list(map(printable, json.dumps(json.loads(settings), indent=2).splitlines()))


def _require_yes(yes: bool, question: str) -> None:
    """Ask the staff, after they have read what they agree to, unless a script has agreed.

    Raises:
        ConfigurationError: if they do not agree, or nobody is asked.
    """
    try:
        answer = "yes" if yes else input(f"{question} [yes/no] ")
    except EOFError as error:
        raise ConfigurationError("Nobody has answered. Run the command in a terminal, or pass '--yes'.") from error
    if answer.strip().lower() not in ("y", "yes"):
        raise ConfigurationError("Not agreed, so nothing has changed.")


def _withdraw(parsed: argparse.Namespace) -> None:
    folder, federation = _folder(parsed), _id(parsed.federation)
    known = SiteRecord(folder, Policy()).withdraw(federation)
    kept = folder / "federations" / federation
    deleted = kept.exists()
    shutil.rmtree(kept, ignore_errors=True)
    print(f"Withdrawn from federation {federation}" + ("." if known else ", in which this site had not taken part."))
    print("Deleted what this site kept for it." if deleted else "This site kept nothing for it.")
    print("Models that the server has aggregated already contain this site's updates; see docs/trust.md.")


# ---------------------------------------------------------------- to read


def _print_budget(parsed: argparse.Namespace) -> None:
    settings = read_settings(Path(parsed.data))
    if settings.policy.budget is None:
        raise ConfigurationError(f"'{parsed.data}' has no 'policy.update.noise.budget'; see docs/real_federation.md.")
    budget = SiteBudget(settings.policy.budget, SiteData(settings).names_persons)
    print(text_table(["federation", "releases", "epsilon alone"], budget.table()))
    print(f"Together, {budget.in_words()}.")


def _audit(parsed: argparse.Namespace) -> None:
    log = _folder(parsed) / "audit.jsonl"
    entries, broken = read_log(log)
    for federation in dict.fromkeys(str(entry.get("federation", "")) for entry in entries):
        if parsed.federation in (None, federation):
            own = [entry for entry in entries if str(entry.get("federation", "")) == federation]
            orders = [order for entry in own for order in entry.get("orders", ())]
            trained, evaluated = (sum(what in order for order in orders) for what in ("train", "evaluate"))
            what = f"{len(own)} messages; ordered {trained} trainings, {evaluated} evaluations"
            print(f"{f'federation {federation}' if federation else 'no federation'}: {what}")
            print(*(f"  {printable(line)}" for entry in own for line in _lines(entry)), sep="\n")
    what = "complete" if not broken else f"BROKEN before the lines {', '.join(map(str, broken[:20]))}"
    print(f"{len(entries)} lines; the chain is {what}.")
    for number, entry in enumerate(entries, 1):
        if entry.get("kind") == CUT:
            print(f"Line {number} was cut off, by a kill or a full disk: which message it was is not known.")
    lacks = bool(parsed.witness) and _lacks(log, Path(parsed.witness))
    if broken or lacks:
        sys.exit(1)


def _lacks(log: Path, path: Path) -> bool:
    """Say and return whether the log lacks a line whose digest the server has kept."""
    try:
        told = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Cannot read '{path}' ({type(error).__name__}). Ask the server's staff for it.") from error
    here = set(digests(log.read_bytes()))
    missing = [number for number, digest in enumerate(told, 1) if digest not in here]
    if missing:
        print(
            f"The log LACKS {len(missing)} of {len(told)} lines of which the server has kept the digest, first that of line "
            f"{missing[0]} of '{path}': it was changed or written anew."
        )
    else:
        print(f"The log has all {len(told)} lines of which the server has kept the digest.")
    return bool(missing)


def _lines(entry: dict[str, Any]) -> Iterator[str]:
    """Yield a message in words: when, which way, its kind and size; then its settings, orders, numbers and tensors."""
    yield " ".join(str(entry.get(name, "")) for name in ("time", "direction", "kind", "bytes")) + " bytes"
    for name in ("settings", "model", "orders", "told", "replies", "stored", "error"):
        value = entry.get(name, [])
        yield from (f"  {name}: {_words(one)}" for one in (value if isinstance(value, list) else [value]))
    left = dict(entry.get("tensors", {})) if entry.get("direction") == "out" else {}
    yield from (f"  tensor: {name} {kind}{shape}" for name, (kind, *shape) in left.items() if 0 not in shape)


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(item)}" for name, item in value.items() if item not in (None, "", [], {}))
    return str(value)


_COMMANDS = {
    "approve": (_approve, "Agree to a federation with its settings, or to a sum over other sites."),
    "withdraw": (_withdraw, "Leave a federation: the site trains for it no more, and deletes what it kept for it."),
    "budget": (_print_budget, "Print what federations have spent of the budget of this site's data."),
    "audit": (_audit, "Print what has crossed the border of this site, by federation, and whether the log is complete."),
}
"""What each command does, and its sentence."""
