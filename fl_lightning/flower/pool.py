"""Train clients at sites that a Flower SuperLink connects."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_lightning.compat.flower import ControlLink, Reply, ServerLink
from fl_lightning.errors import ConfigurationError, RankError, require
from fl_lightning.flower.remote_sites import RemoteSites
from fl_lightning.flower.requirements import require_flower
from fl_lightning.flower.server_folder import ServerFolder, refuse_answer
from fl_lightning.flower.transport import Answer, Parts, Transport
from fl_lightning.messages import ClientInfo
from fl_lightning.utilities.allocator import share_heaps
from fl_lightning.utilities.folder_lock import lock_folder

_DAY = 24 * 3600.0
_OFFLINE, _REVOKED = 5, "it was revoked"
_CAUSES = {
    2: "its worker ended with an error",
    3: "the order was not delivered in time",
    4: "its reply was lost",
    _OFFLINE: "it is offline",
    8: "its worker died",
}


class FlowerPool(RemoteSites):
    """Train clients at sites over Flower: ``--federation.pool FlowerPool``; see docs/real_federation.md.

    The server runs beside this process: ``fl-lightning serve``. The same YAML works as in a simulation, except that
    ``data.partitioner`` is not used: every registered site is a client, with its own data.

    Args:
        folder: the folder of ``fl-lightning serve``.
        wait: the seconds to wait for the registered sites to be online, >= 0; at the start, and with
            ``federation.faults.retries`` for a site that is restarted in a round.
        grace: the seconds beyond ``federation.faults.deadline`` after which a silent site has failed, > 0.
        min_sites: the number of sites that must be online after ``wait`` for the fit to start, >= 1; None for all. The others
            are left out of rounds until they are online, so ``federation.faults.policy`` must be ``skip``.
        model: the model as values, ``{"class_path": ..., "init_args": ...}``, for a fit that a Python script starts with
            ``pool.build_model()``; None on the command line, where sites get the section ``model``.
        max_examples: the most training examples that a site may claim, >= 1: one number, or one for each site by name; None
            for any.
        max_share: the largest share of a round's change that one site may have, in (0, 1]; its numbers of examples and steps
            and its losses are its own claims.
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
    ) -> None:
        super().__init__(grace, min_sites, model, max_examples, max_share)
        require(wait >= 0, "federation.pool.wait", "0 seconds or above", wait)
        self.folder, self.wait = folder, wait

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
            link = _link(lambda: ServerLink(address, certificate, folder.secret), folder)
            return FlowerTransport(link, [nodes.get(name) for name in names], held.pop_all(), self.wait), names

    def _recall(self, name: str) -> ClientInfo | None:
        return ServerFolder(Path(self.folder)).description(name)

    def _remember(self, infos: Sequence[ClientInfo]) -> None:
        ServerFolder(Path(self.folder)).describe(infos)

    def _wait(self, address: str, certificate: bytes, names: Sequence[str]) -> dict[str, int]:
        """Return the node ids of the sites by name, as soon as all are online, or enough after the time limit.

        Raises:
            ConfigurationError: if too few are online.
        """
        folder = ServerFolder(Path(self.folder))
        control, told = _link(lambda: ControlLink(address, certificate), folder), False
        end = time.monotonic() + self.wait
        try:
            while True:
                nodes = {node.name: node for node in _link(control.nodes, folder)}
                missing = [name for name in names if name in nodes and not nodes[name].online]
                late = time.monotonic() > end
                if not missing or late:
                    self._require_enough(names, [n for n in names if n not in nodes], missing)
                    return {name: node.node_id for name, node in nodes.items()}
                if not told:
                    print(f"Waiting for {', '.join(missing)} ...", flush=True)
                    told = True
                time.sleep(0.3)
        finally:
            control.close()

    def _require_enough(self, names: Sequence[str], revoked: Sequence[str], missing: Sequence[str]) -> None:
        online = len(names) - len(revoked) - len(missing)
        if online >= (len(names) if self.min_sites is None else self.min_sites):
            return
        if revoked and self.min_sites is None:
            raise ConfigurationError(
                f"These sites were revoked: {', '.join(revoked)}. Their numbers belong to this federation. Continue without "
                "them: set 'federation.pool.min_sites', and 'federation.faults.policy' to 'skip'. Or start a new one: "
                "'fl-lightning serve' with another folder."
            )
        least = "" if self.min_sites is None else f" Only {online} are online, but 'min_sites' is {self.min_sites}."
        raise ConfigurationError(
            f"These sites are not online after {self.wait:g} s: {', '.join([*missing, *revoked])}.{least} Start 'fl-lightning "
            "site' there, or raise 'federation.pool.wait'."
        )


def _link(call: Any, folder: ServerFolder) -> Any:
    """Return the result of a call to the SuperLink, and say so if it does not answer."""
    try:
        return call()
    except Exception as error:
        refuse_answer(error, folder)
        raise


@dataclass(frozen=True, eq=False)
class _Order:
    """Hold a request that is under way: its client, what was sent, its round, and when its time is over."""

    client: int
    parts: Parts
    round_idx: int
    end: float


class FlowerTransport:
    """Exchange bytes through a SuperLink; see :class:`Transport`.

    Args:
        link: the connection to the SuperLink.
        nodes: the node id of each client; None if it was revoked.
        held: what to release when the transport is closed.
        wait: the seconds for which an order waits for a site that is offline.
    """

    def __init__(self, link: ServerLink, nodes: Sequence[int | None], held: ExitStack | None = None, wait: float = 0.0) -> None:
        self._link, self._nodes, self._held, self._wait = link, list(nodes), held or ExitStack(), wait
        self._later: dict[_Order, float] = {}  # orders to sites that are offline, and until when they wait
        self._looked = 0.0
        self._down: set[int] = set()  # clients whose site was offline when it was last heard of
        self._waiting: dict[str, _Order] = {}  # by the message's id; an order that was sent again has several
        self._refused: list[int] = []

    def absent(self) -> dict[int, str]:
        """See :meth:`Transport.absent`."""
        nodes = self._guarded(self._link.nodes)
        online, registered = {node.node_id for node in nodes if node.online}, self._guarded(self._link.registered)
        gone = {k: _CAUSES[_OFFLINE] for k, node in enumerate(self._nodes) if node not in online}
        return gone | {k: _REVOKED for k, node in enumerate(self._nodes) if node not in registered}

    def send(self, client: int, parts: Parts, round_idx: int, seconds: float | None) -> None:
        """See :meth:`Transport.send`."""
        end = time.monotonic() + (_DAY if seconds is None else seconds)
        order = _Order(client, parts, round_idx, end)
        if client in self._down or not self._push(order):
            if self._nodes[client] is None:
                self._refused.append(client)
            else:
                self._later[order] = time.monotonic() + self._wait

    def _push(self, order: _Order) -> bool:
        node, seconds = self._nodes[order.client], max(0.0, order.end - time.monotonic())
        if node is None:
            return False
        message = self._guarded(lambda: self._link.push(node, order.parts, str(order.round_idx), seconds))
        if message is not None:
            self._waiting[message] = order
        return message is not None

    def answers(self) -> Iterator[Answer]:
        """See :meth:`Transport.answers`."""
        pause = 0.05
        while self._waiting or self._refused or self._later:
            while self._refused:
                yield Answer(self._refused.pop(), None, "the server's SuperLink refused the order")
            yield from self._still_offline()
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
            for order in set(self._waiting.values()):
                if now > order.end:
                    self._drop(order)
                    yield Answer(order.client, None, "no answer within its deadline")
            if self._waiting and self._link.recovered():
                self._send_again()
            pause = 0.05 if any_came else min(0.5, pause * 1.3)
            if (self._waiting or self._later) and not any_came:
                time.sleep(pause)

    def _answered(self, reply: Reply) -> Answer | None:
        """Return what a reply answers; None if its order was sent again, and the other one has been or will be answered."""
        order = self._waiting.pop(reply.order, None)
        if order is None or (reply.content is None and order in self._waiting.values()):
            return None
        self._drop(order)
        return Answer(order.client, reply.content, "" if reply.content is not None else self._cause(order, reply))

    def _still_offline(self) -> Iterator[Answer]:
        """Send the orders to sites that are back, and yield an answer for each whose time is over."""
        now = time.monotonic()
        if not self._later or now < self._looked + 1:
            return
        self._looked, absent = now, self.absent()
        for order, until in list(self._later.items()):
            cause = absent.get(order.client)
            if cause is None and self._push(order):
                self._down.discard(order.client)
                del self._later[order]
            elif cause == _REVOKED or now > until:
                del self._later[order]
                yield Answer(order.client, None, cause or "the server's SuperLink refused the order")

    def _cause(self, order: _Order, reply: Reply) -> str:
        if reply.error == _OFFLINE:
            self._down.add(order.client)  # the SuperLink would take further orders, and answer each with the same error
        if reply.error == _OFFLINE and self._nodes[order.client] not in self._guarded(self._link.registered):
            return _REVOKED
        return _CAUSES.get(reply.error, f"error {reply.error} of Flower")

    def _drop(self, order: _Order) -> None:
        self._waiting = {message: one for message, one in self._waiting.items() if one is not order}

    def _send_again(self) -> None:
        """Send all orders under way again: the SuperLink that died may have lost them, or the replies.

        A site that has done the work, or does it now, answers the repeated order from its store.
        """
        print("The SuperLink is back. Orders without an answer are sent again.", flush=True)
        for order in dict.fromkeys(self._waiting.values()):
            self._push(order)

    def _guarded(self, call: Any) -> Any:
        try:
            return call()
        except Exception as error:
            raise RankError(
                f"The connection to the SuperLink was lost ({type(error).__name__}: {str(error)[:200]}). Start 'fl-lightning "
                "serve' again, and resume from the last checkpoint: --ckpt_path last."
            ) from error

    def forget(self) -> None:
        """See :meth:`Transport.forget`."""
        self._waiting.clear()
        self._refused.clear()
        self._later.clear()

    def close(self, completed: bool) -> None:
        """See :meth:`Transport.close`."""
        with self._held:
            self._link.close(completed)
