"""Options of the small commands, ``init`` and ``dashboard``."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn


class ArgumentParser(argparse.ArgumentParser):
    """Answers a wrong argument with one message."""

    def error(self, message: str) -> NoReturn:
        """Print the message; exit status 2."""
        print(f"{self.prog}: error: {message.rstrip('.')}. All settings: {self.prog} --help.", file=sys.stderr)
        sys.exit(2)
