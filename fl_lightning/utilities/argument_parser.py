"""The argument parser of the commands that have no configuration, such as ``init`` and ``site``."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn


class ArgumentParser(argparse.ArgumentParser):
    """Report a wrong argument in one message; names of arguments must be complete."""

    def __init__(self, prog: str, description: str | None = None, epilog: str | None = None) -> None:
        whole_lines = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, description=description, epilog=epilog, formatter_class=whole_lines, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with status 2."""
        print(f"{self.prog}: error: {message.rstrip('.')}. All settings: {self.prog} --help.", file=sys.stderr)
        sys.exit(2)
