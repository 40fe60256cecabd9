"""Run Flower's SuperLink with a database that shrinks, and check what its sites sign before a request is read.

Upstream: for both we know of no issue.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fl_lightning.compat.flower import free_what_is_done, prepare_environment
from fl_lightning.compat.flower_contents import contents_of, keep_contents_in_files
from fl_lightning.compat.flower_delivery import keep_orders

_PRAGMAS = {"auto_vacuum": "INCREMENTAL", "secure_delete": "ON", "busy_timeout": "120000", "cache_size": "-4000"}
"""What SQLite deletes would otherwise stay in the file, which would never shrink. Flower's wait of 5 s for another writer is
too short on a busy machine: sites would get errors. Each of up to 15 connections has a cache, of 64 MB in Flower."""

_SELDOM = 1.0
"""The seconds between two looks for tasks whose process has died. Flower looks in most requests, and writes each time: so
requests wait for each other, and with three sites the SuperLink takes four fifths of a core."""


def superlink_app(files: Mapping[str, str], host: str, port: int) -> Any:
    """Return the SuperLink as an ASGI app, in place of ``flower-superlink``.

    Args:
        files: the paths of ``ca``, ``certificate``, ``key``, ``database`` and ``secret``.
        host: the address of the local socket.
        port: the port of the local socket.
    """
    prepare_environment()
    free_what_is_done()
    import sys
    from unittest.mock import patch

    from flwr.supercore import sql_mixin
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    given = {
        "host": host,
        "port": str(port),
        "isolation": "process",
        "database": files["database"],
        "superexec-auth-secret-file": files["secret"],
        **{f"ssl-{kind}file": files[name] for kind, name in (("ca-cert", "ca"), ("cert", "certificate"), ("key", "key"))},
    }
    arguments = [word for name, value in given.items() for word in (f"--{name}", value)]
    flags = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    keep_orders()
    keep_contents_in_files(contents_of(Path(files["database"])))
    write_seldom()
    # ``auto_vacuum`` comes first: it has no effect on a database that has pages.
    sql_mixin.SQLITE_PRAGMAS = tuple((_PRAGMAS | dict(sql_mixin.SQLITE_PRAGMAS) | _PRAGMAS).items())
    with patch.object(sys, "argv", ["flower-superlink", *flags, *arguments]):
        config = _parse_superlink_lifespan_config()
    return create_app(config, SuperLinkLifespan)


def signature_check(app: Any) -> Callable[[Mapping[str, str]], bool]:
    """Return what tells by the headers of a request whether a registered site signed it in the last five minutes.

    Flower checks the same, but after it has read the body.

    Args:
        app: the SuperLink.
    """
    from binascii import a2b_base64

    from fastapi import HTTPException
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
    from flwr.superlink.routers.fleet.node_auth import authenticate_node

    def signed(headers: Mapping[str, str]) -> bool:
        try:
            key = a2b_base64(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], strict_mode=True)
            node = app.state.linkstate_factory.state().get_node_id_by_public_key(key)
            if node is None:
                return False
            request: Any = SimpleNamespace(app=app, headers=headers, state=SimpleNamespace())
            request.state.protobuf_request = SimpleNamespace(node_id=node)
            authenticate_node(request)
        except (HTTPException, KeyError, ValueError):
            return False
        return True

    return signed


@functools.cache
def write_seldom() -> None:
    """Let the SuperLink of this process write less in each request."""
    from flwr.supercore.corestate.sql_corestate import SqlCoreState

    core: Any = SqlCoreState
    core._cleanup_expired_task_tokens = seldom(core._cleanup_expired_task_tokens)


def seldom(clean: Callable[[Any], None], pause: float = _SELDOM) -> Callable[[Any], None]:
    """Return a clean-up that does nothing until a pause is over.

    Args:
        clean: the clean-up, a method.
        pause: the seconds, >= 0.
    """
    after = 0.0

    def cleaned(state: Any) -> None:
        nonlocal after
        if time.monotonic() >= after:
            after = time.monotonic() + pause
            clean(state)

    return cleaned
