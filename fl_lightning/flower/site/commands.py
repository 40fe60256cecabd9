"""What a site's staff decides and reads: ``fl-lightning site approve``, ``withdraw`` and ``audit``."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.envelope import printable
from fl_lightning.flower.site.audit import CUT, digests_in, read_log
from fl_lightning.flower.site.budget import SiteBudget
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.settings import read_settings
from fl_lightning.flower.site.store import SiteRecord, agreed, approve, asked, digest_of
from fl_lightning.reporting.tables import text_table
from fl_lightning.utilities.argument_parser import ArgumentParser

_TEXTS = {
    "approve": "Agree to a federation with its settings, or to another number of this site, in the words of the message.",
    "withdraw": "Leave a federation: the site trains for it no more, and deletes what it kept for it.",
    "budget": "Print what federations have spent of the budget of this site's data.",
    "audit": "Print what has crossed the border of this site, by federation and day, and whether the log is complete.",
}


def main(command: str, arguments: Sequence[str]) -> None:
    """Run one of the commands.

    Raises:
        ConfigurationError: if the arguments do not fit, or the folder is not a site's.
    """
    parser = ArgumentParser(prog=f"fl-lightning site {command}", description=_TEXTS[command])
    if command == "budget":
        parser.add_argument("--data", required=True, help="The data.yaml of this site.")
        _print_budget(parser.parse_args(arguments))
        return
    parser.add_argument("--name", help="The name of the site, whose folder is site_NAME.")
    parser.add_argument("--folder", help="The folder of the site, if it is another one.")
    if command == "approve":
        parser.add_argument("federation", nargs="?", help="The id of the federation.")
        parser.add_argument("settings", nargs="?", help="The digest of its settings.")
        parser.add_argument("--number", type=int, help="The number by which the server calls this site.")
        parser.add_argument("--sites", action="store_true", help="Agree to a sum over other sites than before.")
        parser.add_argument("--yes", action="store_true", help="Agree without the question, for scripts.")
    elif command == "withdraw":
        parser.add_argument("federation", help="The id of the federation.")
    else:
        parser.add_argument("--federation", help="Print this one only.")
        parser.add_argument("--witness", help="The file of this site in the folder 'witness' of the server, to compare with.")
    parsed = parser.parse_args(arguments)
    folder = _folder(parsed)
    {"approve": _approve, "withdraw": _withdraw, "audit": _audit}[command](folder, parsed)


def _folder(parsed: argparse.Namespace) -> Path:
    if not (parsed.folder or parsed.name):
        raise ConfigurationError("Which site? Pass '--name', or '--folder' with the folder that 'fl-lightning site' uses.")
    folder = Path(parsed.folder or f"site_{parsed.name}")
    if not (folder / "audit.jsonl").exists():
        raise ConfigurationError(
            f"'{folder}' is not the folder of a site that has had a message. Pass its folder with '--folder'."
        )
    return folder


def _id(text: str | None) -> str:
    if text is None or not re.fullmatch(r"[0-9a-f]{32}", text):
        raise ConfigurationError(
            f"The federation is {text!r}, but must be 32 hexadecimal digits, as in the message or the log."
        )
    return text


def _approve(folder: Path, parsed: argparse.Namespace) -> None:
    if parsed.number is not None and parsed.federation is None:
        _require_yes(parsed, f"Agree that this site is client {parsed.number}?")
        approve(folder, "number", parsed.number)
        print(f"Agreed to be client {parsed.number}.")
        return
    if parsed.sites:
        _approve_sum(folder, parsed)
        return
    federation, digest = _id(parsed.federation), parsed.settings
    settings, before = asked(folder, federation), agreed(folder, federation)
    if not settings or digest_of(settings) != digest:
        raise ConfigurationError(
            f"No server has sent settings with the digest {digest!r} for this federation. Copy it from the message."
        )
    if before:
        print(f"The settings of federation {federation} that differ from those to which this site agreed before:")
        lines = list(difflib.unified_diff(_json_lines(before), _json_lines(settings), lineterm="", n=2))[2:]
        print("\n".join(lines or ["None: they are the same."]))
    else:
        print(f"The settings of federation {federation}:", *_json_lines(settings), sep="\n")
    _require_yes(parsed, "Agree to them?")
    approve(folder, federation, settings)
    print(f"Agreed to federation {federation}.")


def _approve_sum(folder: Path, parsed: argparse.Namespace) -> None:
    from fl_lightning.options.secure_aggregation.record import SignedLists

    lists = SignedLists(folder)
    before, asked, computed = lists.asked()
    if not asked:
        raise ConfigurationError("This site has refused no sum over other sites since the last one that it took part in.")
    print(f"This site's update was in a sum over {', '.join(before)}.")
    print(f"The server asks for one over {', '.join(map(printable, asked))}.")
    print(f"A server that has both could compute the update of {', '.join(map(printable, computed))}.")
    _require_yes(parsed, "Agree to it?")
    lists.agree(asked)  # to what was shown, whatever the server has asked for meanwhile
    print("Agreed.")


def _json_lines(settings: str) -> list[str]:
    return list(map(printable, json.dumps(json.loads(settings), indent=2).splitlines()))


def _require_yes(parsed: argparse.Namespace, question: str) -> None:
    """Ask the staff, after they have read what they agree to.

    Raises:
        ConfigurationError: if they do not agree, or nobody is asked.
    """
    if parsed.yes:
        return
    try:
        answer = input(f"{question} [yes/no] ")
    except EOFError as error:
        raise ConfigurationError("Nobody has answered. Run the command in a terminal, or pass '--yes'.") from error
    if answer.strip().lower() not in ("y", "yes"):
        raise ConfigurationError("Not agreed, so nothing has changed.")


def _withdraw(folder: Path, parsed: argparse.Namespace) -> None:
    federation = _id(parsed.federation)
    known = SiteRecord(folder, Policy()).withdraw(federation)
    kept = folder / "federations" / federation
    deleted = kept.exists()
    shutil.rmtree(kept, ignore_errors=True)
    print(f"Withdrawn from federation {federation}" + ("." if known else ", in which this site had not taken part."))
    print("Deleted what this site kept for it." if deleted else "This site kept nothing for it.")
    print("Models that the server has aggregated already contain this site's updates; see docs/trust.md.")


def _audit(folder: Path, parsed: argparse.Namespace) -> None:
    entries, broken = read_log(folder / "audit.jsonl")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        groups[str(entry.get("federation", "")), str(entry.get("time", ""))[:10]].append(entry)
    for (federation, day), own in groups.items():
        if parsed.federation in (None, federation):
            print(f"{'federation ' + federation if federation else 'no federation'}, {day}")
            for line in _lines(own):
                print(f"  {printable(line)}")
    what = "complete" if not broken else f"BROKEN before the lines {', '.join(map(str, broken[:20]))}"
    print(f"{len(entries)} lines; the chain is {what}.")
    for number, entry in enumerate(entries, 1):
        if entry.get("kind") == CUT:
            print(f"Line {number} was cut off, by a kill or a full disk: which message it was is not known.")
    if parsed.witness:
        print(_witnessed(folder / "audit.jsonl", Path(parsed.witness)))


def _witnessed(log: Path, path: Path) -> str:
    """Return in words whether the log has every line of which the server has kept the digest."""
    try:
        told = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Cannot read '{path}' ({type(error).__name__}). Ask the server's staff for it.") from error
    here = digests_in(log)
    missing = [number for number, digest in enumerate(told, 1) if digest not in here]
    if not missing:
        return f"The log has all {len(told)} lines of which the server has kept the digest."
    return (
        f"The log LACKS {len(missing)} of {len(told)} lines of which the server has kept the digest, first that of line "
        f"{missing[0]} of '{path}': it was changed or written anew."
    )


def _lines(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Return what happened, in words: settings, orders, and each number that left."""
    found = []
    for digest in dict.fromkeys(entry["settings"] for entry in entries if entry.get("settings")):
        own = next(entry for entry in entries if entry.get("settings") == digest)
        found.append(f"settings {digest}: {own.get('model')}")
    orders = [order for entry in entries if entry.get("direction") == "in" for order in entry.get("orders", ())]
    turns, parts = sum("train" in one for one in orders), [one["evaluate"] for one in orders if "evaluate" in one]
    evaluated = ", ".join(f"{parts.count(part)} on {part} examples" for part in dict.fromkeys(parts)) or "none"
    found.append(f"in: {_size(entries, 'in')}; ordered {turns} trainings, evaluations: {evaluated}")
    found.append(f"out: {_size(entries, 'out')}")
    for entry in entries:
        if entry.get("direction") != "out":
            continue
        again = " (again, from the store)" if entry.get("stored") else ""
        if "told" in entry:
            found.append(f"  about its data: {_numbers(entry['told'])}")
        for reply in entry.get("replies", ()):
            if update := reply.get("update"):
                found.append(f"  update of round {update['round_idx']}{again}: {_numbers(update)}")
            found += [f"  failure: {reply['failure']}"] if "failure" in reply else []
            found += [f"  evaluation{again}: {reply['value']}"] if "value" in reply else []
        if "error" in entry:
            found.append(f"  error: {entry['error']}")
    return found


def _print_budget(parsed: argparse.Namespace) -> None:
    settings = read_settings(Path(parsed.data))
    if settings.policy.budget is None:
        raise ConfigurationError(f"'{parsed.data}' has no 'policy.budget'; see docs/real_federation.md.")
    budget = SiteBudget(settings.policy.budget, SiteData(settings).names_persons)
    print(text_table(["federation", "releases", "epsilon alone"], budget.table()))
    print(f"Together, {budget.in_words()}.")


def _size(entries: Sequence[dict[str, Any]], direction: str) -> str:
    own = [entry for entry in entries if entry.get("direction") == direction]
    return f"{len(own)} messages, {sum(entry.get('bytes', 0) for entry in own):,} bytes"


def _numbers(told: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value}" for name, value in told.items() if value not in (None, "", [], {}) and name != "round_idx"
    )
