"""Manage the files of a server: certificates, secret, database, addresses and the numbers of its sites."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_lightning.compat.flower_line import cause_at_server
from fl_lightning.errors import ConfigurationError, WireError
from fl_lightning.flower.wire.keys import create_certificates, require_host, write_private
from fl_lightning.utilities.atomic_file import write_whole
from fl_lightning.utilities.kept_file import read_kept

if TYPE_CHECKING:
    from fl_lightning.messages import ClientInfo


@dataclass(frozen=True)
class ServerFolder:
    """Name the files in the folder of a server.

    Attributes:
        path: the folder.
    """

    path: Path

    @property
    def files(self) -> dict[str, str]:
        """Return the paths that the SuperLink needs."""
        names = {"ca": "ca.crt", "certificate": "server.crt", "key": "server.key", "database": "state.db", "secret": "secret"}
        return {name: str((self.path / file).resolve()) for name, file in names.items()}

    @property
    def ca_key(self) -> Path:
        """Return the key of the CA, which lies beside the folder: whoever has it can pretend to be the server."""
        return self.path.resolve().with_name(self.path.resolve().name + "-ca") / "ca.key"

    def settings(self) -> dict[str, Any]:
        """Return the addresses.

        Raises:
            ConfigurationError: if no server was set up here.
        """
        try:
            return dict(json.loads((self.path / "server.json").read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"'{self.path}' is not the folder of a server ({type(error).__name__}). Run 'fl-lightning serve --folder "
                f"{self.path} --host NAME' first."
            ) from error

    @property
    def local_address(self) -> str:
        """Return the address of the SuperLink for processes on this machine."""
        return f"127.0.0.1:{self.settings()['local_port']}"

    @property
    def certificate(self) -> bytes:
        """Return the certificate of the CA for connections on this machine."""
        return Path(self.files["ca"]).read_bytes()

    @property
    def secret(self) -> bytes:
        """Return the secret of the server's task."""
        return Path(self.files["secret"]).read_bytes()

    def create(self) -> None:
        """Create the folder, for this account only.

        Raises:
            ConfigurationError: if it cannot be created.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigurationError(f"Cannot create the folder '{self.path}' ({error.strerror}). Choose another.") from error

    def prepare(self, host: str, port: int, local_port: int) -> list[str]:
        """Create what is missing, and return what was created, in words.

        Raises:
            ConfigurationError: if the folder cannot be created, or its certificate cannot be used or is for another host.
        """
        self.create()
        made = []
        if not Path(self.files["certificate"]).exists():
            is_new = create_certificates(self.files, self.ca_key, host)
            made.append(f"certificate for {host}, {'with' if is_new else 'of'} the CA of key {self.ca_key} (keep it offline)")
        require_host(host, self.files)
        if not Path(self.files["secret"]).exists():
            write_private(Path(self.files["secret"]), secrets.token_bytes(32))
        text = json.dumps({"host": host, "port": port, "local_port": local_port})
        write_whole(self.path / "server.json", text.encode())
        return made

    # ---------------------------------------------------------------- the numbers of sites

    def numbers(self) -> dict[str, int]:
        """Return the client's id of each site that was ever registered, by name."""
        fix = "Restore it from a copy: it has the numbers of the sites, on which their data depend."
        return {str(name): int(number) for name, number in read_kept(self.path / "sites.json", fix).items()}

    def number(self, name: str) -> int:
        """Return a site's number, and give it the next one if it has none. Numbers are never given again."""
        known = self.numbers()
        if name not in known:
            known[name] = len(known)
            write_whole(self.path / "sites.json", json.dumps(known).encode())
        return known[name]

    # ---------------------------------------------------------------- what sites told

    def descriptions(self) -> dict[str, ClientInfo]:
        """Return what sites told about their data when they were online last, by name; sites that are online tell it again."""
        from fl_lightning.wire import from_bytes  # it imports torch, which the commands of a server do not need

        try:
            return dict(from_bytes((self.path / "descriptions").read_bytes()))
        except (OSError, ValueError, WireError):
            return {}

    def describe(self, infos: Sequence[ClientInfo]) -> None:
        """Keep what sites told, for fits that start without them."""
        from fl_lightning.wire import to_bytes

        write_whole(self.path / "descriptions", to_bytes(self.descriptions() | {info.name: info for info in infos}))

    def witness(self, name: str, digest: str) -> None:
        """Keep the digest of a site's log, from which a log that is written anew at the site differs."""
        path = self.path / "witness" / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{digest}\n")


@contextmanager
def answering(folder: ServerFolder) -> Iterator[None]:
    """Explain an error of a connection to the server of a folder.

    Raises:
        ConfigurationError: if the server did not answer, or refused the request.
    """
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("httpx"):
            raise
        where, cause = folder.local_address, " ".join(str(error).split())[:200]
        if type(error).__name__ == "HTTPStatusError":
            fix = cause_at_server(error) or "Look at its output, and end other servers and fits that use its folder"
            raise ConfigurationError(f"The server at {where} refused the request ({cause}). {fix}.") from error
        raise ConfigurationError(
            f"The server at {where} did not answer ({type(error).__name__}: {cause}). Start it first: fl-lightning serve "
            f"--folder {folder.path} --host {folder.settings()['host']}"
        ) from error
