"""Call sites by other numbers than those of their registration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fl_lightning.flower.wire.transport import Answer, Parts, Transport


class RenumberedTransport:
    """Exchange bytes with sites by their ids in a fit, in which held-out sites are the last; see :class:`Transport`.

    Args:
        transport: reaches the sites by the numbers of their registration.
        numbers: the number of each client.
    """

    def __init__(self, transport: Transport, numbers: Sequence[int]) -> None:
        self._transport, self._numbers = transport, tuple(numbers)

    def absent(self) -> Mapping[int, str]:
        """See :meth:`Transport.absent`."""
        return {self._numbers.index(number): cause for number, cause in self._transport.absent().items()}

    def send(self, client: int, parts: Parts, round_idx: int, seconds: float | None) -> None:
        """See :meth:`Transport.send`."""
        self._transport.send(self._numbers[client], parts, round_idx, seconds)

    def answers(self) -> Iterator[Answer]:
        """See :meth:`Transport.answers`."""
        for answer in self._transport.answers():
            yield replace(answer, client=self._numbers.index(answer.client))

    def forget(self) -> None:
        """See :meth:`Transport.forget`."""
        self._transport.forget()

    def close(self, completed: bool) -> None:
        """See :meth:`Transport.close`."""
        self._transport.close(completed)
