"""The argument parser of the small commands, ``init`` and ``dashboard``."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn


class ArgumentParser(argparse.ArgumentParser):
    """Report a wrong argument in one message."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with status 2."""
        print(f"{self.prog}: error: {message.rstrip('.')}. All settings: {self.prog} --help.", file=sys.stderr)
        sys.exit(2)
