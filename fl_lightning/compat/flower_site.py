"""Use Flower as a transport at a site: take messages from its SuperNode, and ask the server whether a run is active."""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fl_lightning.compat import flower_line
from fl_lightning.compat.flower import prepare_environment
from fl_lightning.compat.flower_delivery import HEARTBEAT
from fl_lightning.compat.flower_memory import free_what_is_done
from fl_lightning.compat.flower_objects import WAIT, receive, send
from fl_lightning.compat.flower_records import as_parts, as_record
from fl_lightning.compat.flower_runtime import acquired, heartbeat, runtime

NOT_ACTIVATED = b"[code: 2004]"
"""What a SuperNode logs if the server refuses to activate it, as long as it counts another one with its key as online."""


@dataclass(frozen=True)
class Task:
    """Hold a message that a site must answer; see :meth:`SiteLink.tasks`."""

    parts: Mapping[str, bytes | bytearray]
    client: Any
    message: Any
    context: Any

    def reply(self, content: bytes | bytearray) -> None:
        """Send the answer."""
        from flwr.app import Message

        message = Message(as_record({"reply": content}), reply_to=self.message)
        send(self.client, message, _node(self.context), self.context.run_id)


class SiteLink:
    """Take messages from this site's SuperNode, in place of ``flower-superexec`` and ``flwr-clientapp``.

    Args:
        address: the SuperNode's address on this machine.
        secret: the secret that allows a process to acquire tasks.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        prepare_environment()
        self._address, self._secret = address, secret
        self._client = runtime(address, None, secret, "SuperExec")

    @contextmanager
    def task(self) -> Iterator[Task | None]:
        """Take the next message if there is one; it ends as completed, or as failed if the body raises an exception."""
        from flwr.supercore.constant import TaskType
        from flwr.supernode.runtime.run_clientapp import push_task_output

        got = acquired(self._client, TaskType.CLIENT_APP)
        if got is None:
            yield None
            return
        client = runtime(self._address, None, self._secret, "flwr-clientapp", got[1])
        beating = heartbeat(client)
        status, context = "failed", None
        try:
            message, context = _task_input(client)
            parts = as_parts(message.content)
            message.content.clear()  # who answers frees the parts
            yield Task(parts, client, message, context)
            status = "completed"
        finally:
            push_task_output(client, context, status, "")
            beating.stop()
            client.close()

    @staticmethod
    def is_gone(error: Exception) -> bool:
        """Return whether an error says that the SuperNode does not run."""
        import httpx

        return isinstance(error, httpx.TransportError)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _node(context: Any) -> Any:
    from flwr.proto.node_pb2 import Node as NodeProto

    return NodeProto(node_id=context.node_id)


def _task_input(client: Any) -> tuple[Any, Any]:
    """Return the message and the context of a task, in place of ``pull_task_input``; the bundle is not read."""
    from flwr.common.serde import context_from_proto
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullTaskInputRequest
    from flwr.supercore.task_identity import TaskIdentity

    given = client.PullTaskInput(PullTaskInputRequest())
    context = context_from_proto(given.context)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = given.task_id, given.run.run_id, context.node_id
    found = client.PullMessages(PullAppMessagesRequest())
    if not found.messages_list:
        raise RuntimeError("The SuperNode has no message for its task.")
    tree = found.message_object_trees[0]
    message = receive(client, tree, _node(context), context.run_id, limit=None)
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message, context


class RunWatch:
    """Ask the server whether a run is still active: a SuperNode does not ask while its worker is busy.

    Args:
        address: the server's public address, host and port.
        certificate: the CA's certificate, PEM; None for the system's.
        key: the site's private key, OpenSSH.
    """

    def __init__(self, address: str, certificate: bytes | None, key: bytes) -> None:
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        private: Any = load_ssh_private_key(key, None)
        self._public = public_key_to_bytes(private.public_key())
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        signed = NodeAuthHttpInterceptor(private, private.public_key())
        self._client = FleetHttpClient.from_server_address(address, False, certificate, interceptors=[version, signed])

    def registered(self) -> bool:
        """Return whether the server knows the key.

        It asks for an activation with an interval that no server accepts, so that nothing changes: a known key fails later than
        an unknown one.

        Raises:
            OSError: if the server does not answer.
        """
        import httpx
        from flwr.proto.fleet_pb2 import ActivateNodeRequest
        from flwr.supercore.error import ApiErrorCode, FlowerError

        try:
            self._client.ActivateNode(ActivateNodeRequest(public_key=self._public, heartbeat_interval=-1.0))
        except httpx.HTTPStatusError as error:
            told = FlowerError.from_json(error.response.text)
            return told is not None and told.code == ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL
        except httpx.HTTPError as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        return True

    def ended(self, task: Task) -> bool:
        """Return whether the server says that the run of a task has ended; a server that does not answer says nothing."""
        import httpx
        from flwr.proto.node_pb2 import Node as NodeProto
        from flwr.proto.run_pb2 import GetRunRequest
        from flwr.supercore.error import FlowerError

        node = NodeProto(node_id=task.context.node_id)
        try:
            self._client.GetRun(GetRunRequest(node=node, run_id=task.context.run_id))
        except httpx.HTTPStatusError as error:
            return error.response.status_code == 403 and FlowerError.from_json(error.response.text) is not None
        except httpx.HTTPError:
            return False
        return False


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


def dropping_incomplete(pull: Callable[..., Any]) -> Callable[..., Any]:
    """Let the SuperNode drop a message whose run ends while its contents arrive, as it drops one whose connection breaks.

    Flower leaves such a message and its task: the worker takes the task and waits for the contents forever, and so
    does the SuperNode for the worker. ``RunNotRunningException`` is no ``Exception`` there, so its clean-up misses it.

    Args:
        pull: the SuperNode's ``_pull_and_store_message``.
    """
    from flwr.supercore.run import RunNotRunningException

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any) -> Any:
            try:
                return call(*arguments)
            except RunNotRunningException as error:
                raise RuntimeError("the run has ended") from error

        return ask

    def pulled(**given: Any) -> Any:
        ends = ("pull_object", "confirm_message_received")
        return pull(**{name: failing(value) if name in ends else value for name, value in given.items()})

    return pulled


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


def answer_unread() -> None:
    """Let the state of SuperNodes in this process use :func:`answering_unread`."""
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    state: Any = InMemoryNodeState
    state._on_task_tokens_expired = answering_unread(state._on_task_tokens_expired)


def run_supernode(trouble: str) -> None:
    """Run Flower's SuperNode with the arguments of this process, in place of ``flower-supernode``.

    Args:
        trouble: the file in which it tells the site's staff what is wrong with the line.
    """
    prepare_environment()
    free_what_is_done()
    from flwr.supernode.cli.flower_supernode import flower_supernode

    loop: Any = import_module("flwr.supernode.start_client_internal")
    loop.time = Pauses()
    loop.pull_objects = functools.partial(loop.pull_objects, **WAIT)
    for module in ("flwr.supernode.fleet_http_connection", "flwr.supercore.heartbeat"):
        changed: Any = import_module(module)
        changed.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
    loop._pull_and_store_message = dropping_incomplete(loop._pull_and_store_message)
    flower_line.last(Path(trouble))
    answer_unread()
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
        "from fl_lightning.utilities.allocator import return_freed_memory; return_freed_memory(); "
        f"from fl_lightning.compat.flower_site import run_supernode; run_supernode({trouble!r})"
    )
    roots = ["--root-certificates", certificate] if certificate else []
    return [
        *(sys.executable, "-c", start, "--superlink", address, *roots, "--auth-supernode-private-key", key),
        *("--host", "127.0.0.1", "--port", str(port), "--isolation", "process", "--superexec-auth-secret-file", secret),
    ]
