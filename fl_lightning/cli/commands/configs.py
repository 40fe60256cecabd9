"""The command ``fl-lightning configs``: list, show and copy the package's configurations."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fl_lightning.config.files import find, folder, names, write_new
from fl_lightning.errors import did_you_mean

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
    """Run the command; wrong arguments end in one message and exit status 2.

    Args:
        arguments: the arguments after ``configs``.

    Raises:
        ConfigurationError: if there is no such configuration, or its copy cannot be written.
    """
    action, *rest = arguments or ["list"]
    if action in ("-h", "--help"):
        print(_USAGE, end="")
    elif f"{action} {len(rest)}" in ("list 0", "show 1", "copy 1", "copy 2"):
        actions: dict[str, Callable[..., str]] = {"list": listing, "show": show, "copy": copy}
        print(actions[action](*rest), end="")
    else:
        near = did_you_mean(action, {"list", "show", "copy"} - {action}) or did_you_mean(action, names(), show="show {}".format)
        said = f"'configs' has no action '{action}' with {len(rest)} arguments.{near}"
        print(f"fl-lightning: error: {said}\n{_USAGE.rstrip()}", file=sys.stderr)
        sys.exit(2)


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
