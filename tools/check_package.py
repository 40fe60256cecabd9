"""Build the wheel and the sdist, check them, and use the wheel as a user would: alone, and in another folder.

    python tools/check_package.py --out dist

The wheel is installed into an environment of its own, which takes the dependencies from the one that runs this, so that nothing
is downloaded. There it fits a configuration, federates a module from a script, and mypy reads its types.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
SMALL = ["--data.datamodule.source=embedded", "--model.network=LeNet", "--trainer.max_epochs=1", "--trainer.accelerator=cpu"]
SCRIPT = """
from fl_lightning import AdaFed, FederatedOrchestrator, LocalTraining, __file__

federation: FederatedOrchestrator = FederatedOrchestrator(AdaFed(power=2), local=LocalTraining(max_epochs=1))
print(__file__)
"""
WRONG = SCRIPT.replace("power=2", "power='two'")


def run(*command: str | Path, folder: Path, fails: bool = False) -> str:
    """Run a command, and return what it printed.

    Raises:
        SystemExit: if its status is not what was expected.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env=clean | {"WANDB_MODE": "disabled"}, capture_output=True, text=True, timeout=600, check=False
    )
    if bool(done.returncode) != fails:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def build(out: Path) -> Path:
    """Build and check both archives, and return the wheel."""
    run(sys.executable, "-m", "hatchling", "build", "--directory", out, folder=ROOT)
    built = sorted(out.iterdir())
    print(run(sys.executable, "-m", "twine", "check", "--strict", *built, folder=ROOT), end="")
    (wheel,) = (path for path in built if path.suffix == ".whl")
    return wheel


def environment(folder: Path, wheel: Path) -> Path:
    """Create an environment with the wheel, and return the folder of its commands."""
    venv.create(folder, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # lines of .pth files there are not read
    install = ["install", "--quiet", "--no-deps", "--no-index", "--ignore-installed", wheel]
    run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", *install, folder=folder)
    return folder / "bin"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="an empty folder for the archives")
    out = parser.parse_args().out.resolve()
    if out.is_dir() and any(out.iterdir()):
        raise SystemExit(f"'{out}' is not empty. Remove it, or name another folder with --out.")
    with tempfile.TemporaryDirectory() as name:
        elsewhere = Path(name)
        binaries = environment(elsewhere / "environment", build(out))
        (elsewhere / "right.py").write_text(SCRIPT)
        (elsewhere / "wrong.py").write_text(WRONG)
        found = run(binaries / "python", "right.py", folder=elsewhere).strip()
        if not found.startswith(str(elsewhere)):
            raise SystemExit(f"The script imports {found} instead of the wheel.")
        checked = [sys.executable, "-m", "mypy", "--strict", "--python-executable", binaries / "python"]
        print("mypy:", run(*checked, "right.py", folder=elsewhere).strip())
        said = run(*checked, "wrong.py", folder=elsewhere, fails=True)
        if 'incompatible type "str"; expected "float"' not in said:
            raise SystemExit(f"mypy does not read the wheel's types:\n{said}")
        run(binaries / "fl-lightning", "fit", "--config=adafed_mnist", *SMALL, folder=elsewhere)
        if not (elsewhere / "runs" / "adafed_mnist").is_dir():
            raise SystemExit("The fit left no folder.")
        print("The wheel alone fits adafed_mnist.")


if __name__ == "__main__":
    main()
