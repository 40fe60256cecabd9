"""The command of a site: ``fl-lightning site``, the parent of a SuperNode and of a resident worker."""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fl_lightning.compat.flower_supernode import NOT_ACTIVATED, supernode_command
from fl_lightning.errors import ConfigurationError, FederationError
from fl_lightning.flower.site.processes import ALIVE, UNUSABLE, Child, Supervisor
from fl_lightning.flower.wire.keys import create_key, read_private_key, require_certificate, write_private
from fl_lightning.flower.wire.requirements import address_of, require_flower, require_name
from fl_lightning.utilities.argument_parser import ArgumentParser
from fl_lightning.utilities.folder_lock import lock_folder


def run(arguments: argparse.Namespace) -> None:
    """Run the site in the foreground until SIGTERM or Ctrl-C."""
    folder = Path(arguments.folder or f"site_{arguments.name}").resolve()
    read_private_key(Path(arguments.key))
    if not Path(arguments.data).is_file():
        raise ConfigurationError(f"'--data' is '{arguments.data}', which is not a file. Write it; see docs/real_federation.md.")
    if arguments.ca:
        require_certificate(arguments.ca)
    address = address_of(arguments.server)
    with suppress(OSError):  # the next line says what is wrong
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with lock_folder(folder, "site", "--folder"):
        failed = _supervise(arguments, folder, address)
    say("Stopped.")
    if failed:
        sys.exit(1)


def _supervise(arguments: argparse.Namespace, folder: Path, address: str) -> bool:
    """Run SuperNode and worker until the site is told to stop, and return whether the worker cannot work."""
    secret, trouble, log, port = folder / "secret", folder / "trouble", folder / "supernode.log", _free_port()
    write_private(secret, secrets.token_bytes(32))
    trouble.unlink(missing_ok=True)
    node = supernode_command(address, arguments.ca or "", arguments.key, port, str(secret), str(trouble))
    own = {"folder": str(folder), "address": f"127.0.0.1:{port}", "secret": str(secret), "server": address}
    worker = [sys.executable, "-m", "fl_lightning.flower.site.worker", json.dumps(vars(arguments) | own)]
    environment = {"FLWR_HOME": str(folder / "flwr"), "PYTHONUNBUFFERED": "1"}
    say(f"Site {arguments.name} connects to {address}; its folder is {folder}.")
    children = [
        Child("SuperNode", node, environment, str(log), explain=lambda: _cause(arguments, log), tells=trouble),
        Child("worker", worker, environment, last=UNUSABLE, alive=folder / ALIVE),
    ]
    supervisor = Supervisor(children, say)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, supervisor.stop)
    return supervisor.run()


def _cause(arguments: argparse.Namespace, log: Path) -> str:
    """Return why the SuperNode may have ended, which its own log does not say in words."""
    from fl_lightning.flower.site.connection import first_problem

    try:
        problem = first_problem(arguments)
        counted = NOT_ACTIVATED in log.read_bytes()[-3000:]
    except Exception:  # this must never end the site
        return ""
    again = (
        "The server still counts this site as connected. After a crash this lasts up to half a minute. If it lasts longer, "
        "the same key is in use on another machine, too: each site needs a key of its own."
    )
    return problem or (again if counted else "")


def say(line: str) -> None:
    """Print a line for the site's staff, unless the disk of its log is full."""
    with suppress(OSError):
        print(f"[site] {line}", flush=True)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog="fl-lightning site",
        description="Take part in a federation with your own data.",
        epilog="Also: fl-lightning site approve, withdraw, audit and budget; see their --help.",
    )
    parser.add_argument("--name", help="The name under which the server registered this site.")
    parser.add_argument("--server", help="The server's address, https://HOST:PORT.")
    parser.add_argument("--key", help="The file of the private key.")
    parser.add_argument("--data", help="The data.yaml of this site, which never leaves it.")
    parser.add_argument("--ca", help="The certificate of the server's CA, ca.crt; by default the system's CAs.")
    parser.add_argument("--folder", help="The folder for state, logs and the audit log; by default site_NAME.")
    parser.add_argument("--create_key", metavar="NAME.key", help="Create a key pair, and exit. The private key never leaves.")
    parser.add_argument("--check", action="store_true", help="Test network, certificates, registration and data, and exit.")
    return parser


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser, words = _parser(), arguments[1:]
    try:
        if words and words[0] in ("approve", "withdraw", "audit", "budget"):
            from fl_lightning.flower.site.commands import main as decide

            decide(words[0], words[1:])
            return
        parsed = parser.parse_args(words)
        require_flower()
        if parsed.create_key:
            public = create_key(Path(parsed.create_key))
            print(f"Created {parsed.create_key} (private, keep it here) and {public} (give it to the server).")
            return
        missing = [f"--{name}" for name in ("name", "server", "key", "data") if not getattr(parsed, name)]
        if missing:
            parser.error(f"the following arguments are required: {', '.join(missing)}")
        require_name(parsed.name)
        if parsed.check:
            from fl_lightning.flower.site.check import check

            sys.exit(0 if check(parsed) else 1)
        run(parsed)
    except FederationError as error:
        print(f"fl-lightning: error: {error}", file=sys.stderr)
        sys.exit(1)
