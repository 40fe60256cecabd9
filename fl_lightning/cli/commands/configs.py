"""The command ``fl-lightning configs``: list, show and copy the package's configurations."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fl_lightning.config.files import find, folder, names, write_new
from fl_lightning.errors import ConfigurationError, did_you_mean

_USAGE = """usage: fl-lightning configs                   list the configurations that come with the package
       fl-lightning configs show NAME         print one
       fl-lightning configs copy NAME [TO]    copy one to a file or folder (default: the current folder)
"""
_GROUPS = {
    "": "fl-lightning fit --config NAME; several may be given, and later ones override earlier ones:",
    "data": "Data and partitions, alone or on top of any of these:",
    "attacks": "Attackers:",
    "speed": "Speed:",
    "studies": "Studies, for fl-lightning compare --config NAME:",
}


def main(arguments: Sequence[str]) -> None:
    """Run the command; a wrong name ends in one message and exit status 1, wrong arguments in exit status 2.

    Args:
        arguments: the arguments after ``configs``.
    """
    action, *rest = arguments or ["list"]
    if action in ("-h", "--help"):
        print(_USAGE, end="")
    elif action not in ("list", "show", "copy"):
        known = did_you_mean(action, ["list", "show", "copy"]) or did_you_mean(action, names(), show="show {}".format)
        _refuse(f"'configs' has no action '{action}'.{known}\n{_USAGE.rstrip()}", 2)
    elif len(rest) not in {"list": (0,), "show": (1,), "copy": (1, 2)}[action]:
        _refuse(f"'configs {action}' got {len(rest)} arguments.\n{_USAGE.rstrip()}", 2)
    else:
        actions: dict[str, Callable[..., str]] = {"list": listing, "show": show, "copy": copy}
        try:
            print(actions[action](*rest), end="")
        except ConfigurationError as error:
            _refuse(str(error), 1)


def _refuse(message: str, status: int) -> None:
    print(f"fl-lightning: error: {message}", file=sys.stderr)
    sys.exit(status)


def listing() -> str:
    """Return every name with a line that describes it."""
    known = names()
    width = max(map(len, known), default=0)
    lines = []
    for group, about in _GROUPS.items():
        lines += [about, ""]
        lines += [f"  {name:<{width}}  {_headline(name)}" for name in known if name.rpartition("/")[0] == group]
        lines.append("")
    return "\n".join([*lines, "Print one: fl-lightning configs show NAME. Get a copy: fl-lightning configs copy NAME.", ""])


def _headline(name: str) -> str:
    """Return the first sentence of the comment at the top of a configuration."""
    comment = []
    for line in (folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.removeprefix("#").strip())
    return re.split(r"(?<!et al)[.] ", " ".join(comment))[0].rstrip(".:")


def show(name: str) -> str:
    """Return the text of a configuration."""
    return find(name).read_text(encoding="utf-8")


def copy(name: str, to: str = ".") -> str:
    """Copy a configuration, and return where the copy is.

    Args:
        name: name of the configuration.
        to: file, or an existing folder.

    Raises:
        ConfigurationError: if the file already exists or cannot be written.
    """
    source, target = find(name), Path(to).expanduser()
    target = target / source.name if target.is_dir() else target
    write_new(target, source.read_text(encoding="utf-8"))
    return f"{target}\nUse it: fl-lightning {'compare' if source.parent.name == 'studies' else 'fit'} --config {target}\n"
