"""Register and list sites, and start and stop runs, in place of the command ``flwr``."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fl_lightning.compat.flower_delivery import BEATS

ONLINE = "online"
_STUB = b"""[project]
name = "fl-lightning"
version = "0.1.0"
description = "A stub: server and sites run the fl_lightning that they have installed."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fllightning"
[tool.flwr.app.components]
serverapp = "fl_lightning.flower:none"
clientapp = "fl_lightning.flower:none"
[tool.flwr.app.config]
"""


def prepare_environment() -> None:
    """Disable Flower's telemetry and update check, before flwr is imported, and any proxy for this machine's own addresses."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    for name in ("NO_PROXY", "no_proxy"):
        given = [one for one in os.environ.get(name, "").split(",") if one]
        os.environ[name] = ",".join(dict.fromkeys([*given, "127.0.0.1", "localhost"]))


@dataclass(frozen=True)
class Node:
    """Describe a registered site.

    Attributes:
        node_id: Flower's id, which survives restarts.
        name: the registered name.
        online: whether its SuperNode is connected.
        key: the public key.
        heard: when it gave its last sign of life, in seconds since the epoch.
    """

    node_id: int
    name: str
    online: bool
    key: bytes
    heard: float = 0.0


class ControlLink:
    """Register and list sites, in place of the command ``flwr supernode``. Only processes on the server's host may do so.

    Args:
        address: the SuperLink's local address, host and port.
        certificate: the CA's certificate, PEM.
    """

    def __init__(self, address: str, certificate: bytes) -> None:
        prepare_environment()
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        self.client = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=False,
            root_certificates=certificate,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def register(self, public_key: bytes, name: str) -> int:
        """Register a site by its public key in OpenSSH's format, and return its node id."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        return int(self.client.RegisterNode(RegisterNodeRequest(public_key=_flower_key(public_key), name=name)).node_id)

    def knows(self, public_key: bytes) -> bool:
        """Return whether a key in OpenSSH's format was ever registered, which makes Flower refuse it."""
        from flwr.proto.control_pb2 import ListNodesRequest

        key = _flower_key(public_key)
        return any(node.public_key == key for node in self.client.ListNodes(ListNodesRequest()).nodes_info)

    def unregister(self, node_id: int) -> None:
        """Revoke a site's registration."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        self.client.UnregisterNode(UnregisterNodeRequest(node_id=node_id))

    def nodes(self) -> list[Node]:
        """Return all registered sites."""
        from flwr.proto.control_pb2 import ListNodesRequest

        found = self.client.ListNodes(ListNodesRequest()).nodes_info
        return [_described(node) for node in found if node.status != "unregistered"]

    def stop_runs(self) -> None:
        """Stop all runs that have not finished: a server that was killed leaves one."""
        from flwr.proto.control_pb2 import ListRunsRequest, StopRunRequest

        for run in self.client.ListRuns(ListRunsRequest()).run_dict.values():
            if run.status.status != "finished":
                with suppress(Exception):  # it may have ended in the meantime
                    self.client.StopRun(StopRunRequest(run_id=run.run_id))

    def start_run(self) -> int:
        """Start a run of a bundle without code, in place of ``flwr run``, and return its id."""
        from hashlib import sha256

        from flwr.cli.build import build_fab_from_files
        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        content = build_fab_from_files({"pyproject.toml": _STUB})[0]
        fab = fab_to_proto(Fab(sha256(content).hexdigest(), content, {}))
        return int(self.client.StartRun(StartRunRequest(fab=fab)).run_id)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()


def _described(node: Any) -> Node:
    heard = node.online_until - BEATS * node.heartbeat_interval
    return Node(node.node_id, node.name, node.status == ONLINE, node.public_key, heard)


def _flower_key(public_key: bytes) -> bytes:
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    key: Any = load_ssh_public_key(public_key)
    found: bytes = public_key_to_bytes(key)
    return found
