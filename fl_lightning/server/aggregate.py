"""Aggregate the updates of a round: their exact sums, or all of them at once, in memory or in files."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fl_lightning.core.federation import Federation
from fl_lightning.core.option import Aggregate
from fl_lightning.errors import ClientError, ConfigurationError
from fl_lightning.functional.exact_sum import magnitude, to_float64
from fl_lightning.functional.model_parts import widened
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.returned import as_number, described, require_vector
from fl_lightning.functional.seeding import generator
from fl_lightning.functional.sums import Sums
from fl_lightning.server.checks.ranks import require_same_state
from fl_lightning.strategies.base import JointStrategy, ModelScorer, RunningStrategy
from fl_lightning.transforms.base import Transform
from fl_lightning.types import ClientUpdate
from fl_lightning.utilities.collectives import Collectives

_MOVED, _WEIGHT = "moved ", "weight of moved "
"""The prefixes of the sums of tensors, whose names end in the shape, and of the weights of those that had no value before."""
_LEAST = 2.0**-700
"""Stands for a weight of 0: it vanishes beside any other, and if all weights are 0, each client counts the same."""


class RoundSums:
    """Add up the updates that arrive on this rank; see :class:`~fl_lightning.core.option.Gathering`.

    Args:
        federation: the parts of the federation, whose strategy has begun the round.
        examples: the number of examples of each expected update, on any rank, from which the strategy chooses the resolution.
    """

    def __init__(self, federation: Federation, examples: Sequence[int]) -> None:
        strategy, self._server, self._comm = federation.settings.strategy, federation.server, federation.pool.comm
        assert isinstance(strategy, RunningStrategy)
        self._strategy, self._moved = strategy, MovedTensors(self._server)
        self._sums = Sums(federation.trainer.strategy.root_device, strategy.grids(examples, self._server.grid))

    def add(self, update: ClientUpdate) -> ClientUpdate:
        """Let the strategy add an update to the sums."""
        source, remedy = f"{type(self._strategy).__name__}.accumulate returned", "Return the update's weight, for the log."
        weight = as_number(self._strategy.accumulate(update, self._sums), source, remedy)
        if update.snapshot.moved:
            self._moved.add(update.snapshot.moved, weight, self._sums)
        return replace(update, weight=weight)

    def total(self) -> Sums:
        """Return the sums over all ranks; ranks exchange data."""
        self._comm.add_sums(self._sums)
        return self._sums

    def aggregate(self, updates: list[ClientUpdate], chains: Sequence[Sequence[int]], scorer: ModelScorer) -> Aggregate:
        """Return the strategy's aggregate of the sums."""
        sums = self.total()
        weight_of = {update.client: update.weight for update in updates}
        weights = [math.fsum(weight_of[client] for client in chain) for chain in chains if chain]
        return self._strategy.aggregate(sums), updates, self._moved.result(weights, sums, self._comm)


class AllUpdates:
    """Keep all updates with their models; see :class:`~fl_lightning.core.option.Gathering`.

    Args:
        federation: the parts of the federation, whose strategy needs them at once.
        clients: the number of clients in the round. If their models need too much memory, they are in files.
    """

    def __init__(self, federation: Federation, clients: int) -> None:
        assert isinstance(federation.strategy, JointStrategy)
        self._comm, self._strategy, self._moved = federation.comm, federation.strategy, MovedTensors(federation.server)
        self._device = federation.trainer.strategy.root_device
        self._kept: list[ClientUpdate | StoredUpdate] = []
        self._folder: Path | None = None
        if clients * federation.server.nbytes(upward=True) > federation.settings.storage.memory * 2**30:
            folder = Path(federation.trainer.default_root_dir) / "updates"
            folder.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(dir=folder))  # of this rank: other runs may use the folder, too

    def add(self, update: ClientUpdate) -> ClientUpdate:
        """Keep an update."""
        if self._folder is None:
            self._kept.append(update)
            return update
        self._kept.append(StoredUpdate(update, self._folder / f"{len(self._kept)}.bin"))
        return update.without_state()

    def aggregate(self, updates: list[ClientUpdate], chains: Sequence[Sequence[int]], scorer: ModelScorer) -> Aggregate:
        """Return what the strategy makes of all updates."""
        everyone, strategy = self._everyone(), self._strategy
        state, weights = _state_and_weights(strategy, everyone, strategy.combine(everyone, scorer))
        counting, sums = weights if any(weights) else [1.0] * len(weights), Sums(self._device)
        for update, weight in zip(everyone, counting, strict=True):
            if weight and update.snapshot.moved:
                self._moved.add(update.snapshot.moved, weight, sums)
        moved = self._moved.result(counting, sums, self._comm)
        if self._folder is not None:
            self._comm.gather(None)  # until all ranks have finished reading, no file may be deleted
        handed = {update.client: weight / update.num_examples for update, weight in zip(everyone, weights, strict=True)}
        per_example = {client: handed[chain[-1]] for chain in chains if chain for client in chain}
        return state, [replace(u, weight=per_example[u.client] * u.num_examples) for u in updates], moved

    def _everyone(self) -> list[ClientUpdate]:
        """Return the updates of all ranks, in the order of clients."""
        if self._folder is None:
            return self._comm.gather_updates([kept for kept in self._kept if isinstance(kept, ClientUpdate)], None)
        stored = [kept for theirs in self._comm.gather(self._kept) for kept in theirs]
        mapped: list[ClientUpdate] = []
        failure: Exception | None = None
        try:
            mapped = sorted([kept.load() for kept in stored], key=lambda update: update.client)
        except Exception as error:
            failure = error
        self._comm.gather_or_raise(None, failure)
        return mapped

    def close(self) -> None:
        """Delete the files; models mapped in this process stay readable."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # others may still use the folder
                self._folder.parent.rmdir()


class StoredUpdate:
    """Write the state of an update to a file, and map it again: the system reads and frees its pages as needed.

    Args:
        update: the update.
        path: the file.
    """

    def __init__(self, update: ClientUpdate, path: Path) -> None:
        state = update.snapshot.vector.detach().cpu().contiguous()
        state.view(torch.uint8).numpy().tofile(path)
        self._update, self._path = update.with_state(torch.zeros(0)).to("cpu"), path
        self._size, self._dtype = state.numel(), state.dtype

    def load(self) -> ClientUpdate:
        """Return the update with its state.

        Raises:
            ClientError: if this rank cannot find the file.
        """
        if not self._path.exists():
            raise ClientError(
                f"Another rank wrote a client's model to '{self._path}', but this rank cannot find it. Set "
                "'trainer.default_root_dir' to a file system that all ranks share, or raise 'federation.storage.memory'."
            )
        return self._update.with_state(torch.from_file(str(self._path), shared=False, size=self._size, dtype=self._dtype))


def _state_and_weights(strategy: JointStrategy, updates: Sequence[ClientUpdate], answer: object) -> tuple[Tensor, list[float]]:
    """Return the answer of a strategy's ``combine`` after checking it, except for the state's shape.

    Raises:
        ConfigurationError: if the answer is not a state and weights.
        ClientError: if the weights are invalid; it names the strategy.
    """
    name = type(strategy).__name__
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Sequence | Tensor)):
        raise ConfigurationError(
            f"{name}.combine returned {described(answer)}, but a new state and a list of weights are needed. Return both, for "
            "example 'return state, [1.0] * len(updates)'."
        )
    weights = [float(weight) for weight in answer[1]]
    if len(weights) != len(updates) or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ClientError(
            f"{name} gave {len(updates)} updates the weights {weights[:5]}. Return one weight for each update from its "
            "'combine', finite and 0 or above."
        )
    return answer[0], weights


class MovedTensors:
    """Average the tensors that clients changed with the clients' weights, or take their extremes.

    A client that did not change a tensor counts with the server's value. Where the server has no finite value yet, such as an
    observer's range before its first batch, the clients that found one are averaged. The minimum or the maximum is
    taken of buffers for which the module or torch's observers ask for it (``extreme_buffers``).

    Args:
        server: the view of the server's module, as it was when the round began.
    """

    def __init__(self, server: ModelState) -> None:
        self._server = server
        self._extremes: dict[str, Tensor] = {}

    def add(self, moved: Mapping[str, Tensor], weight: float, sums: Sums) -> None:
        """Add a client's tensors to the sums, with its weight."""
        before, rules = self._server.tensors(), self._server.extremes()
        for name, tensor in moved.items():
            if name in rules:
                self._extremes[name] = _extreme(rules[name], tensor, self._extremes.get(name, before[name]))
                continue
            base = before[name].to(tensor.device)
            known, key = _has_value(base, tensor.shape), f"{name} {'x'.join(map(str, tensor.shape))}"
            sums.add(_MOVED + key, to_float64(tensor) - (to_float64(base) if known else 0.0), max(weight, _LEAST))
            if not known:
                sums.add(_WEIGHT + key, 1.0, max(weight, _LEAST))

    def result(self, weights: Iterable[float], sums: Sums, comm: Collectives) -> dict[str, Tensor]:
        """Return the new values by name.

        Args:
            weights: the weights of all models that the round has aggregated.
            sums: the sums over all ranks.
            comm: the ranks.

        Raises:
            ConfigurationError: if clients gave a buffer different shapes.
        """
        total = math.fsum(max(weight, _LEAST) for weight in weights)
        before, rules = self._server.tensors(), self._server.extremes()
        found: dict[str, Tensor] = {}
        for key in sorted(key.removeprefix(_MOVED) for key in sums.sizes() if key.startswith(_MOVED)):
            name, _, sizes = key.rpartition(" ")
            base, shape = before[name], torch.Size([int(size) for size in sizes.split("x") if size])
            if name in found:
                raise ConfigurationError(
                    f"Training gave the buffer '{name}' the shape {tuple(found[name].shape)} at one client and {tuple(shape)} "
                    "at another, so it cannot be averaged. Register it with its final shape, or let each client keep it: name "
                    "it in 'client_state'."
                )
            known = _has_value(base, shape)
            mean = sums.take(_MOVED + key).div_(total if known else sums.scalar(_WEIGHT + key)).to(base.device).view(shape)
            found[name] = mean.add_(widened(base)) if known else mean
        own = {name: tensor.cpu() for name, tensor in self._extremes.items()}
        for theirs in comm.gather(own) if rules else ():
            for name, tensor in theirs.items():
                found[name] = _extreme(rules[name], tensor.to(before[name].device), found.get(name, before[name]))
        return found


def _has_value(before: Tensor, shape: torch.Size) -> bool:
    """Return whether the change of a tensor from its value before can be averaged, once it has a shape."""
    return before.shape == shape and bool(torch.isfinite(widened(before)).all())


def _extreme(rule: str, one: Tensor, other: Tensor) -> Tensor:
    """Return the elementwise minimum or maximum; of one tensor alone if the other has another shape, so no value yet."""
    if one.shape != other.shape:
        return one
    return (torch.minimum if rule == "min" else torch.maximum)(one, other.to(one.device))


def finalize_aggregate(parts: Federation, round_idx: int, aggregate: Tensor, received: int, expected: int) -> Tensor:
    """Return the transformed aggregate of a round, float64, shape (d,), the same on every rank.

    Args:
        parts: the parts of the federation.
        round_idx: the communication round, from 0.
        aggregate: the strategy's result, shape (d,).
        received: the number of updates in it.
        expected: the number of expected updates.

    Raises:
        ConfigurationError: if the strategy or a transform returned another shape or dtype, or if ranks differ.
        ClientError: if the result is not finite.
    """
    method = "combine" if isinstance(parts.settings.strategy, JointStrategy) else "aggregate"
    source = f"{type(parts.settings.strategy).__name__}.{method}"
    remedy = "Return one number for each number of 'update.state', computed in float64 ('update.state.double()')."
    require_vector(aggregate, parts.server.size, f"{source} returned", remedy, torch.float64)
    if parts.pool.comm.size > 1:
        require_same_state(parts.pool.comm, aggregate, source, round_idx)
    size = parts.server.num_parameters
    start: Tensor | None = None
    for number, transform in enumerate(parts.settings.transforms):
        if type(transform).receive is Transform.receive:  # the default does nothing: skip it to avoid rounding
            continue
        start = to_float64(parts.server.vector()[:size]) if start is None else start
        draw = generator(parts.settings.seed, round_idx, "server", "transform", number)
        secret = parts.secret.stream(f"transform {number}", round_idx)
        changed = transform.receive(aggregate[:size] - start.to(aggregate), received, expected, draw, secret)
        remedy = "Return one number for each number of 'change', in float64."
        require_vector(changed, size, f"{type(transform).__name__}.receive returned", remedy, torch.float64)
        aggregate = torch.cat([start.to(changed) + changed, aggregate[size:]])
    if not math.isfinite(magnitude(aggregate)):
        raise ClientError(
            f"{type(parts.settings.strategy).__name__} returned values that are not finite in round {round_idx}. Lower the "
            "clients' learning rate, or clip with 'federation.local.gradient_clip_val'."
        )
    return aggregate
