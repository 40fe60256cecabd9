"""The commands of the server's side: ``fl-lightning serve``, ``register`` and ``sites``."""

from __future__ import annotations

import argparse
import errno
import logging
import re
import shlex
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import fl_lightning
from fl_lightning.compat.flower_contents import contents_of
from fl_lightning.compat.flower_server import ControlLink
from fl_lightning.compat.flower_superlink import signature_check, superlink_app
from fl_lightning.errors import ConfigurationError, FederationError
from fl_lightning.flower.wire.gate import Gate, InTurn
from fl_lightning.flower.wire.keys import read_public_key
from fl_lightning.flower.wire.requirements import require_flower, require_name
from fl_lightning.flower.wire.retention import Sweeper
from fl_lightning.flower.wire.server_folder import ServerFolder, answering
from fl_lightning.utilities.allocator import reuse_pieces
from fl_lightning.utilities.argument_parser import ArgumentParser
from fl_lightning.utilities.folder_lock import lock_folder
from fl_lightning.utilities.kept_file import damaged


def serve(arguments: argparse.Namespace) -> None:
    """Run the server's SuperLink in the foreground."""
    folder = ServerFolder(Path(arguments.folder))
    if arguments.port == arguments.local_port != 0:
        raise ConfigurationError(f"'--port' and '--local_port' are both {arguments.port}. Choose different ports.")
    folder.create()
    with lock_folder(folder.path, "server", "--folder"):
        _serve(arguments, folder)


def _serve(arguments: argparse.Namespace, folder: ServerFolder) -> None:
    import uvicorn

    reuse_pieces()
    listening = [_listen(arguments.bind, arguments.port), _listen("127.0.0.1", arguments.local_port)]
    port, local_port = (one.getsockname()[1] for one in listening)
    for made in folder.prepare(arguments.host, port, local_port):
        print(f"Created: {made}")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    database = Path(folder.files["database"])
    _check_database(database)
    superlink = superlink_app(folder.files, "127.0.0.1", local_port)
    app = Gate(
        InTurn(superlink, contents_of(database)), folder.path, port, signature_check(superlink), fl_lightning.__version__
    )
    config = uvicorn.Config(
        app,
        ssl_certfile=folder.files["certificate"],
        ssl_keyfile=folder.files["key"],
        log_level="warning",
        timeout_graceful_shutdown=3,
    )
    where = shlex.quote(arguments.folder)
    print(
        f"Serving sites at https://{arguments.host}:{port}\n"
        f"Give each site: this address and {folder.files['ca']} (not secret).\n"
        f"Each site runs 'fl-lightning site --create_key NAME.key' and returns NAME.pub; then:\n"
        f"  fl-lightning register NAME.pub --folder {where}\n"
        f"  fl-lightning fit --config ... --federation.pool FlowerPool --federation.pool.folder {where}",
        flush=True,
    )
    with closing(Sweeper(database, contents_of(database))):
        uvicorn.Server(config).run(sockets=listening)


def _check_database(path: Path) -> None:
    """Refuse a damaged database, which Flower would meet request by request.

    Raises:
        ConfigurationError: naming the file.
    """
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(path)) as database:
            ((found,),) = database.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        fix = "Restore it from a copy, or delete it and register all sites again. Fits resume from their checkpoints."
        raise damaged(path, fix)


def _listen(host: str, port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        other = "port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "address for '--bind', such as 0.0.0.0"
        raise ConfigurationError(f"Cannot listen on {host}:{port} ({error.strerror}). Choose another {other}.") from error
    return found


def register(arguments: argparse.Namespace) -> None:
    """Register a site by its public key."""
    folder, path = ServerFolder(Path(arguments.folder)), Path(arguments.public_key)
    name = arguments.name or path.stem
    require_name(name)
    key = read_public_key(path)
    with _control(folder) as link, lock_folder(folder.path / "register", "registration", "--folder"):
        if any(node.name == name for node in link.nodes()):
            raise ConfigurationError(f"A site named '{name}' is registered already. Revoke it first, or choose another name.")
        if link.knows(key):
            raise ConfigurationError(
                f"The key in '{path}' was registered before, and each key can be registered once. Ask for a new one: "
                "fl-lightning site --create_key NAME.key"
            )
        number = folder.number(name)  # first, because a key can be registered only once
        link.register(key, name)
    print(f"Registered {name} as client {number}.")


def sites(arguments: argparse.Namespace) -> None:
    """List the sites, or revoke one."""
    folder = ServerFolder(Path(arguments.folder))
    numbers = folder.numbers()
    with _control(folder) as link:
        nodes = {node.name: node for node in link.nodes()}
        if arguments.action == "list":
            print(f"{'client':>6}  {'site':<24}status")
            for name, number in numbers.items():
                status = "revoked" if name not in nodes else "online" if nodes[name].online else "offline"
                print(f"{number:>6}  {name:<24}{status}")
            return
        if arguments.name is None:
            raise ConfigurationError(f"'revoke' needs the name of a site. Sites: {', '.join(nodes) or 'none'}.")
        if arguments.name not in nodes:
            raise ConfigurationError(f"No site named {arguments.name!r} is registered. Sites: {', '.join(nodes) or 'none'}.")
        link.unregister(nodes[arguments.name].node_id)
    print(f"Revoked {arguments.name}. Its number {numbers.get(arguments.name)} stays with this name.")


@contextmanager
def _control(folder: ServerFolder) -> Iterator[ControlLink]:
    """Connect to the SuperLink of a folder, and say so if it does not run."""
    with answering(folder), closing(ControlLink(folder.local_address, folder.certificate)) as link:
        yield link


def _host(text: str) -> str:
    if not re.fullmatch(r"[0-9A-Za-z]([0-9A-Za-z.-]*[0-9A-Za-z])?|[0-9A-Fa-f:]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name or an address without 'https://' and port")
    return text


def _port(text: str) -> int:
    port = int(text) if text.isdecimal() else -1
    if not 0 <= port < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, a number from 0 to 65535")
    return port


def _serve_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", type=_host, required=True, help="The name or address by which sites reach this machine.")
    parser.add_argument("--bind", default="0.0.0.0", help="The address to listen on; 127.0.0.1 behind a proxy.")
    parser.add_argument("--port", type=_port, default=8443, help="The port for sites; 0 for any free one.")
    parser.add_argument("--local_port", type=_port, default=8444, help="The port on loopback, for 'fit' and 'register'.")


def _register_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("public_key", help="The site's public key.")
    parser.add_argument("--name", help="The site's name; by default the file's.")


def _sites_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["list", "revoke"])
    parser.add_argument("name", nargs="?", help="The site to revoke.")


_COMMANDS: dict[str, tuple[Callable[[Any], None], Callable[[argparse.ArgumentParser], None]]] = {
    "serve": (serve, _serve_arguments),
    "register": (register, _register_arguments),
    "sites": (sites, _sites_arguments),
}


def main(arguments: Sequence[str]) -> None:
    """Run one of the server's commands."""
    command, rest = arguments[0], arguments[1:]
    run, add = _COMMANDS[command]
    parser = ArgumentParser(prog=f"fl-lightning {command}", description=run.__doc__)
    parser.add_argument("--folder", default="fed", help="The server's folder.")
    add(parser)
    try:
        require_flower()
        run(parser.parse_args(rest))
    except FederationError as error:
        print(f"fl-lightning: error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
