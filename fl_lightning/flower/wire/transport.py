"""The interface through which a server's pool exchanges bytes with its sites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Content: TypeAlias = bytes | bytearray
Parts: TypeAlias = Mapping[str, Content]


class LateParts(Mapping[str, Content]):
    """Hold named bytes that are made when they are read, so that a request that waits for its answer takes no memory.

    Args:
        makers: by name, a function that returns the bytes, the same ones each time.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Content]]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> Content:
        """Return the bytes of that name."""
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over the names."""
        return iter(self._makers)

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._makers)


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
        ...

    def send(self, client: int, parts: Parts, round_idx: int, seconds: float | None) -> None:
        """Send a request.

        Args:
            client: the client's id.
            parts: named bytes.
            round_idx: the round, for logs.
            seconds: the time limit of the answer; None for no limit.
        """
        ...

    def answers(self) -> Iterator[Answer]:
        """Yield answers until no request is under way, including those to requests sent in the meantime."""
        ...

    def forget(self) -> None:
        """Ignore the answers to requests that are under way."""
        ...

    def close(self, completed: bool) -> None:
        """End the connection; sites stop working on it."""
        ...
