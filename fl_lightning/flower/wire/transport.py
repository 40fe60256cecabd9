"""The interface through which a server's pool exchanges bytes with its sites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Content: TypeAlias = bytes | bytearray
Parts: TypeAlias = Mapping[str, Content]


@dataclass(frozen=True)
class Answer:
    """Hold what came back from a client.

    Attributes:
        client: the client's id.
        content: the reply; None if no usable reply came.
        cause: why no usable reply came, in words.
        lost: whether the transport lost the request or the reply, so that the site has not failed.
    """

    client: int
    content: Content | None
    cause: str = ""
    lost: bool = False


class Transport(Protocol):
    """Exchange bytes with sites; each client has at most one request under way."""

    def absent(self) -> Mapping[int, str]:
        """Return the clients that cannot be reached now, each with the cause in words."""

    def send(self, client: int, parts: Parts, seconds: float | None) -> None:
        """Send a request, of which the transport keeps nothing.

        Args:
            client: the client's id.
            parts: named bytes.
            seconds: the time limit of the answer; None for no limit.
        """

    def answers(self) -> Iterator[Answer]:
        """Yield answers until no request is under way, including those to requests sent in the meantime."""

    def forget(self) -> None:
        """Ignore the answers to requests that are under way."""

    def close(self, completed: bool) -> None:
        """End the connection; sites stop working on it."""
