"""Fetch the wheels that a machine without a network lacks, in the versions that are installed here.

    python tools/gpu_wheels.py --present packages.txt --python 3.12 --out wheels

``packages.txt`` lists what that machine has, as ``pip list`` or ``pip freeze`` prints it, or names alone between blanks or
commas. What this package and the chosen extras need and that list lacks is fetched, with its needs, as binary wheels for
64-bit Linux on x86; so is what the list has in a version that does not fit. docs/gpu.md says how to use them there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_EXTRAS = ("digits", "privacy")
_TESTS = ("pytest", "pytest-timeout")
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28, 31, 34)] + [
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
]
_HEAVY = ("torch", "torchvision", "nvidia-", "cuda-", "triton")


def present(text: str) -> dict[str, str]:
    """Return the packages of a list by canonical name, with a version where it gives one."""
    found = {}
    for line in text.splitlines():
        words = line.replace("==", " ").split("#")[0].replace(",", " ").split()
        if len(words) == 2 and re.match(r"\d", words[1]):
            found[canonicalize_name(words[0])] = words[1]
        else:
            found |= {canonicalize_name(word): "" for word in words}
    return found


def lacking(there: Mapping[str, str], python: str, wanted: Collection[str]) -> dict[str, str]:
    """Return what has to be fetched, by canonical name, in this environment's versions.

    Args:
        there: what the other machine has; an empty version is taken to fit.
        python: its version, for the markers.
        wanted: requirements to begin with.

    Raises:
        SystemExit: if a need is not installed here, so that no version of it is known to work.
    """
    found: dict[str, str] = {}
    left = [(Requirement(text), "") for text in wanted]
    seen = set()
    while left:
        need, _ = left.pop()
        name = canonicalize_name(need.name)
        if (name, frozenset(need.extras)) in seen or _fits(there.get(name), need):
            continue
        seen.add((name, frozenset(need.extras)))
        try:
            own = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise SystemExit(f"{need} is not installed here. Install it, or add it to the list of what is there.") from None
        if name != "fl-lightning":
            found[name] = own.version
        for text in own.requires or ():
            further = Requirement(text)
            if _applies(further, need.extras, python):
                left.append((further, name))
    return found


def _fits(version: str | None, need: Requirement) -> bool:
    if version is None or not version:
        return version is not None
    try:
        return need.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def _applies(need: Requirement, extras: Collection[str], python: str) -> bool:
    if need.marker is None:
        return True
    there = {"python_version": ".".join(python.split(".")[:2]), "python_full_version": python, "sys_platform": "linux"}
    there |= {"platform_machine": "x86_64", "platform_system": "Linux", "implementation_name": "cpython"}
    return any(need.marker.evaluate({**there, "extra": extra}) for extra in (*extras, ""))


def fetch(chosen: Mapping[str, str], python: str, out: Path) -> None:
    """Download the wheels."""
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
    command += ["--python-version", ".".join(python.split(".")[:2]), "--dest", str(out)]
    command += [part for platform in _PLATFORMS for part in ("--platform", platform)]
    subprocess.run([*command, *(f"{name}=={version}" for name, version in sorted(chosen.items()))], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--present", type=Path, required=True, help="a file with what the machine has")
    parser.add_argument("--python", required=True, help="the machine's version of Python, such as 3.12")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the wheels")
    parser.add_argument("--extras", nargs="*", default=list(_EXTRAS), help="of fl_lightning")
    parser.add_argument("--also", nargs="*", default=list(_TESTS), help="further packages")
    parser.add_argument("--again", nargs="*", default=[], metavar="NAME", help="fetch these although they are there")
    args = parser.parse_args()
    there = present(args.present.read_text())
    for name in args.again:
        there.pop(canonicalize_name(name), None)
    chosen = lacking(there, args.python, [f"fl_lightning[{','.join(args.extras)}]", *args.also, *args.again])
    heavy = [name for name in chosen if name.startswith(_HEAVY)]
    if heavy:
        raise SystemExit(f"The list lacks {', '.join(heavy)}, which is too large to carry. Install it on the machine first.")
    fetch(chosen, args.python, args.out)
    size = sum(path.stat().st_size for path in args.out.glob("*.whl")) / 2**20
    print(f"{len(chosen)} wheels, {size:.1f} MiB in {args.out}: {', '.join(sorted(chosen))}")


if __name__ == "__main__":
    main()
