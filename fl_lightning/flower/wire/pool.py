"""Train clients at sites that a Flower SuperLink connects."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path
from typing import Any

from fl_lightning.compat.flower_line import cause_at_server
from fl_lightning.compat.flower_server import ControlLink, Node, Reply, ServerLink
from fl_lightning.errors import ConfigurationError, RankError, require
from fl_lightning.flower.server.sites import RemoteSites
from fl_lightning.flower.wire.requirements import require_flower
from fl_lightning.flower.wire.server_folder import ServerFolder, answering
from fl_lightning.flower.wire.transport import Answer, Parts, Transport
from fl_lightning.messages import ClientInfo
from fl_lightning.utilities.allocator import share_heaps
from fl_lightning.utilities.folder_lock import lock_folder

_MONTH = 30 * 24 * 3600.0
"""The seconds for which an order without a deadline is good."""
_NIGHT, _SHORT = 12 * 3600.0, 300.0
"""The seconds of silence after which a site has failed, if that ends the run, and if the round continues without it."""
_LOOK = 5.0
"""The seconds between two looks at which sites are silent."""
_SILENT = 60.0
"""The seconds without a sign of life after which the fit says that a site with an order is silent."""
_OFFLINE, _REVOKED = 5, "it was revoked"
_LOST = (3, 4)
_CAUSES = {
    2: "its worker ended with an error",
    3: "the order was lost on its way",
    4: "its reply was lost on its way",
    8: "its worker died",
}
_say = functools.partial(print, flush=True)


class FlowerPool(RemoteSites):
    """Train clients at sites over Flower: ``--federation.pool FlowerPool``; see docs/real_federation.md.

    The server runs beside this process: ``fl-lightning serve``. The same YAML works as in a simulation, except that
    ``data.partitioner`` is not used: every registered site is a client, with its own data.

    Args:
        folder: the folder of ``fl-lightning serve``.
        wait: the seconds to wait for the registered sites to be online at the start, >= 0.
        grace: the seconds beyond ``federation.faults.deadline`` after which a silent site has failed, > 0.
        min_sites: the number of sites that must be online after ``wait`` for the fit to start, >= 1; None for all. The others
            are left out of rounds until they are online, so ``federation.faults.policy`` must be ``skip``.
        model: the model as values, ``{"class_path": ..., "init_args": ...}``, for a fit that a Python script starts with
            ``pool.build_model()``; None on the command line, where sites get the section ``model``.
        max_examples: the most training examples that a site may claim, >= 1: one number, or one for each site by name; None
            for any.
        max_share: the largest share of a round's change that one site may have, in (0, 1]; its numbers of examples and steps
            and its losses are its own claims.
        timeout: the seconds without any sign of life after which a site that has an order has failed, >= 30. None for 12 hours,
            or for 5 minutes with ``federation.faults.policy: skip``.
    """

    def __init__(
        self,
        folder: str = "fed",
        wait: float = 60.0,
        grace: float = 30.0,
        min_sites: int | None = None,
        model: dict[str, Any] | None = None,
        max_examples: int | dict[str, int] | None = None,
        max_share: float = 1.0,
        timeout: float | None = None,
    ) -> None:
        super().__init__(grace, min_sites, model, max_examples, max_share)
        require(wait >= 0, "federation.pool.wait", "0 seconds or above", wait)
        require(timeout is None or timeout >= 30, "federation.pool.timeout", "30 seconds or above, or null", timeout)
        self.folder, self.wait, self.timeout = folder, wait, timeout

    def _connect(self, settings: Any) -> tuple[Transport, Sequence[str]]:
        require_flower()
        share_heaps()
        folder = ServerFolder(Path(self.folder))
        names = sorted(folder.numbers(), key=folder.numbers().__getitem__)
        address, certificate = folder.local_address, folder.certificate
        if not names:
            raise ConfigurationError("No site is registered. Run 'fl-lightning register NAME.pub' for each.")
        with ExitStack() as held:  # until the transport is closed
            held.enter_context(lock_folder(folder.path / "fit", "fit", "federation.pool.folder"))
            nodes = self._wait(address, certificate, names)
            with answering(folder):
                link = ServerLink(address, certificate, folder.secret)
            patience = self.timeout or (_SHORT if settings.faults.skips else _NIGHT)
            return FlowerTransport(link, [nodes.get(name) for name in names], held.pop_all(), patience), names

    def _recall(self, name: str) -> ClientInfo | None:
        return ServerFolder(Path(self.folder)).descriptions().get(name)

    def _remember(self, infos: Sequence[ClientInfo]) -> None:
        ServerFolder(Path(self.folder)).describe(infos)

    def _witness(self, name: str, digest: str) -> None:
        ServerFolder(Path(self.folder)).witness(name, digest)

    def _wait(self, address: str, certificate: bytes, names: Sequence[str]) -> dict[str, int]:
        """Return the node ids of the sites by name, as soon as all are online, or enough after the time limit.

        Raises:
            ConfigurationError: if too few are online.
        """
        end, told = time.monotonic() + self.wait, False
        with answering(ServerFolder(Path(self.folder))), closing(ControlLink(address, certificate)) as control:
            while True:
                nodes = {node.name: node for node in control.nodes()}
                missing = [name for name in names if name in nodes and not nodes[name].online]
                if not missing or time.monotonic() > end:
                    self._require_enough(names, [n for n in names if n not in nodes], missing)
                    return {name: node.node_id for name, node in nodes.items()}
                if not told:
                    _say(f"Waiting for {', '.join(missing)} ...")
                    told = True
                time.sleep(0.3)

    def _require_enough(self, names: Sequence[str], revoked: Sequence[str], missing: Sequence[str]) -> None:
        online = len(names) - len(revoked) - len(missing)
        if online < (len(names) if self.min_sites is None else self.min_sites):
            gone = [*missing, *(f"{name} (revoked)" for name in revoked)]
            raise ConfigurationError(
                f"These sites are not online after {self.wait:g} s: {', '.join(gone)}. Start 'fl-lightning site' there, or "
                f"raise 'federation.pool.wait'. To continue with the {online} others, set 'federation.pool.min_sites', and "
                "'federation.faults.policy' to 'skip'."
            )


class FlowerTransport:
    """Exchange bytes through a SuperLink; see :class:`Transport`.

    Args:
        link: the connection to the SuperLink.
        nodes: the node id of each client; None if it was revoked.
        held: what to release when the transport is closed.
        patience: the seconds without a sign of life after which a site that has an order has failed.
    """

    def __init__(
        self, link: ServerLink, nodes: Sequence[int | None], held: ExitStack | None = None, patience: float = _NIGHT
    ) -> None:
        self._link, self._nodes, self._held, self._patience = link, list(nodes), held or ExitStack(), patience
        self._silence, self._looked = SilenceWatch(patience), time.monotonic()
        self._waiting: dict[str, tuple[int, float]] = {}  # client and end of each order, by the message's id
        self._refused: list[int] = []

    def absent(self) -> dict[int, str]:
        """See :meth:`Transport.absent`."""
        online = {node.node_id: node.online for node in self._guarded(self._link.nodes)}
        return {
            client: _REVOKED if node not in online else "it is offline"
            for client, node in enumerate(self._nodes)
            if not online.get(node or 0)
        }

    def send(self, client: int, parts: Parts, seconds: float | None) -> None:
        """See :meth:`Transport.send`."""
        node, limit = self._nodes[client], _MONTH if seconds is None else seconds
        message = None
        if node is not None:
            message = self._guarded(lambda: self._link.push(node, parts, limit, self._patience))
        if message is None:
            self._refused.append(client)
        else:
            self._waiting[message] = client, time.monotonic() + limit

    def answers(self) -> Iterator[Answer]:
        """See :meth:`Transport.answers`."""
        pause = 0.05
        while self._waiting or self._refused:
            while self._refused:
                yield Answer(self._refused.pop(), None, "the server's SuperLink refused the order")
            replies, any_came = iter(self._link.pull([*self._waiting]) if self._waiting else ()), False
            while self._waiting:  # one after another: each may hold a model
                reply = self._guarded(functools.partial(next, replies, None))
                if reply is None:
                    break
                any_came = True
                answer = self._answered(reply)
                del reply
                if answer is not None:
                    yield answer
                del answer
            now = time.monotonic()
            for message, (client, end) in [*self._waiting.items()]:
                if now > end:
                    del self._waiting[message]
                    yield Answer(client, None, "no answer within its deadline")
            if self._waiting and self._link.recovered():
                _say("The SuperLink is back. Orders without an answer are sent again.")
                lost, self._waiting = [client for client, _ in self._waiting.values()], {}
                yield from (Answer(client, None, "the SuperLink was started again", lost=True) for client in lost)
            self._look(now)
            pause = 0.05 if any_came else min(0.5, pause * 1.3)
            if self._waiting and not any_came:
                time.sleep(pause)

    def _look(self, now: float) -> None:
        """Tell which sites with an order have fallen silent, or are back."""
        if self._waiting and now >= self._looked + _LOOK:
            self._looked = now
            asked = {self._nodes[client] for client, _ in self._waiting.values()}
            self._silence.look([node for node in self._guarded(self._link.nodes) if node.node_id in asked])

    def _answered(self, reply: Reply) -> Answer | None:
        """Return what a reply answers; None if it is not waited for: its order was sent again."""
        client, _ = self._waiting.pop(reply.order, (-1, 0.0))
        if client < 0:
            return None
        if reply.content is not None:
            return Answer(client, reply.content)
        revoked = reply.error in (_OFFLINE, *_LOST) and self.absent().get(client) == _REVOKED
        silent = f"it has given no sign of life for {self._patience:g} s ('federation.pool.timeout')"
        cause = (_CAUSES | {_OFFLINE: silent}).get(reply.error, f"error {reply.error} of Flower")
        return Answer(client, None, _REVOKED if revoked else cause, lost=not revoked and reply.error in _LOST)

    def _guarded(self, call: Any) -> Any:
        try:
            return call()
        except Exception as error:
            lost = f"The connection to the SuperLink was lost ({type(error).__name__}: {str(error)[:200]}). Start 'fl-lightning"
            cause = cause_at_server(error) or f"{lost} serve' again"
            raise RankError(f"{cause}, and resume from the last checkpoint: --ckpt_path last.") from error

    def forget(self) -> None:
        """See :meth:`Transport.forget`."""
        self._waiting.clear()
        self._refused.clear()

    def close(self, completed: bool) -> None:
        """See :meth:`Transport.close`."""
        with self._held:
            self._link.close(completed)


class SilenceWatch:
    """Print a line when a site falls silent, and when it is back.

    Args:
        patience: the seconds of silence after which a site has failed.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._heard: dict[str, float] = {}  # of the silent ones, when they were heard last

    def look(self, nodes: Iterable[Node]) -> None:
        """Look at the sites that have an order."""
        now = time.time()
        for node in nodes:
            silent = now - node.heard
            if silent >= _SILENT and node.name not in self._heard:
                self._heard[node.name] = node.heard
                since, until = (datetime.fromtimestamp(node.heard + more) for more in (0, self._patience))
                _say(
                    f"Site {node.name} has given no sign of life since {since:%Y-%m-%d %H:%M:%S} ({silent:.0f} s). Its order "
                    f"waits until {until:%Y-%m-%d %H:%M:%S}."
                )
            elif silent < _SILENT and node.name in self._heard:
                away = now - self._heard.pop(node.name)
                _say(f"Site {node.name} is back after {f'{away:.0f} s' if away < 120 else f'{away / 60:.0f} min'}.")
