"""Run Flower's SuperNode with what a site needs of it, and let it answer for a worker that died."""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from fl_lightning.compat import flower_line
from fl_lightning.compat.flower import free_what_is_done, prepare_environment
from fl_lightning.compat.flower_delivery import HEARTBEAT
from fl_lightning.compat.flower_messages import WAIT

NOT_ACTIVATED = b"[code: 2004]"
"""What a SuperNode logs if the server refuses to activate it, as long as it counts another one with its key as online."""


class Pauses:
    """Stand in for the module ``time`` in the main loop of Flower's SuperNode, which asks for the next message every 3 s.

    The pauses grow with the time since the last message: a fifth of it, from 0.1 s to Flower's own. So short rounds are not
    held up, and a SuperNode without work costs the server no more than Flower's.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep for at most as long as Flower would."""
        if seconds < 1:  # it waits for the worker
            self._since = time.monotonic()
            time.sleep(min(seconds, 0.05))
        else:
            time.sleep(min(seconds, max(0.1, (time.monotonic() - self._since) / 5)))


def answering_unread(expired: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Let the SuperNode answer a message whose worker died after it took the task and before it took the message.

    Flower answers with an error only for messages that were taken: the server would wait for the others forever.

    Args:
        expired: the node state's ``_on_task_tokens_expired``, which it calls with its store of tasks locked.
    """
    from flwr.common.constant import Status

    def handled(state: Any, tasks: Any) -> None:
        for run in {task.run_id for task in tasks}:
            waiting = sum(one.run_id == run and one.status.status == Status.PENDING for one in state.task_store.values())
            with state.lock_msg_store:
                entries = [entry for entry in state.msg_store.values() if entry.message.metadata.run_id == run]
            unread = [entry for entry in entries if not (entry.is_retrieved or entry.message.metadata.reply_to_message_id)]
            for entry in unread[: max(0, len(unread) - waiting)]:  # for the later ones, tasks wait
                entry.is_retrieved = True
                state.record_message_processing_start(entry.message.metadata.message_id)
        expired(state, tasks)

    return handled


def run_supernode(trouble: str) -> None:
    """Run Flower's SuperNode with the arguments of this process, in place of ``flower-supernode``.

    Args:
        trouble: the file in which it tells the site's staff what is wrong with the line.
    """
    prepare_environment()
    free_what_is_done()
    from flwr.supernode.cli.flower_supernode import flower_supernode
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    loop: Any = import_module("flwr.supernode.start_client_internal")
    loop.time = Pauses()
    loop.pull_objects = functools.partial(loop.pull_objects, **WAIT)
    for module in ("flwr.supernode.fleet_http_connection", "flwr.supercore.heartbeat"):
        changed: Any = import_module(module)
        changed.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
    state: Any = InMemoryNodeState
    state._on_task_tokens_expired = answering_unread(state._on_task_tokens_expired)
    flower_line.last(Path(trouble))
    try:
        flower_supernode()
    except Exception:
        traceback.print_exc()
    os._exit(1)  # its main loop has ended, but a thread of its Runtime API keeps the process


def supernode_command(address: str, certificate: str, key: str, port: int, secret: str, trouble: str) -> list[str]:
    """Return the command of a site's SuperNode, which runs nothing by itself.

    Args:
        address: the server's public address, host and port.
        certificate: the file of the CA's certificate; empty for the system's.
        key: the file of the private key.
        port: the port on loopback at which the worker finds it.
        secret: the file of the secret that allows the worker to take tasks.
        trouble: the file in which it tells what is wrong with the line.
    """
    start = (
        "from fl_lightning.utilities.allocator import reuse_pieces; reuse_pieces(); "
        f"from fl_lightning.compat.flower_supernode import run_supernode; run_supernode({trouble!r})"
    )
    roots = ["--root-certificates", certificate] if certificate else []
    return [
        *(sys.executable, "-c", start, "--superlink", address, *roots, "--auth-supernode-private-key", key),
        *("--host", "127.0.0.1", "--port", str(port), "--isolation", "process", "--superexec-auth-secret-file", secret),
    ]
