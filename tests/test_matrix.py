"""Each case, an algorithm or an option, gives the same in every way to train it: to the bit, unless a line here says otherwise.

The cases are one line each in support/algorithms.py, and the ways are in support/ways.py. ``make test`` takes some of each way,
and ``make test-all`` all of them. A case's plain run, which the others are compared with, is trained once.
"""

import functools
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import ways
from algorithms import ALGORITHMS
from bits_record import differences
from ways import Record, Run

from fl_lightning.errors import ConfigurationError, EngineError, WireError

Plain = Callable[[str], Run]
CASES = tuple(ALGORITHMS)

TRAINED: dict[str, Callable[[str, Path, Run], Run]] = {
    "resumed": lambda case, folder, plain: ways.fit(
        case, folder, "trainer", ckpt_path=str(plain.halfway), before={k: plain.rounds[k] for k in range(ways.BEFORE)}
    ),
    "fabric": lambda case, folder, plain: ways.fit(case, folder, "fabric"),
    "stacked": lambda case, folder, plain: ways.fit(case, folder, "stacked"),
    "bytes": lambda case, folder, plain: ways.over_bytes(case, folder),
}
"""The ways in this process, by name: each trains a case in a folder, where its plain run is known."""

QUICK = {
    "resumed": (
        *("fedadam", "kept in periods", "moving targets", "python state", "streams", "shapley", "unreliable", "scaffold"),
        *("attackers", "private clients", "mocha", "standardized", "personal", "fedbuff", "apfl"),
    ),
    "fabric": ("kept optimizers", "moving targets", "python state", "scaffold", "private examples", "personal", "streams"),
    "stacked": ("fedavg", "fedprox", "fednova", "scaffold", "attackers", "streams"),
    "bytes": ("kept optimizers", "compressed", "personal", "fedbuff"),
    "two ranks": ("adafed odds", "python state", "scaffold", "mediators", "clients' parts", "fedbuff"),
    "killed": ("scaffold", "personal", "fedbuff"),
    "one client": ("adafed", "moving targets", "scaffold", "fedcyclic", "changed settings"),
}
"""The cases of each way that are not slow."""

VARIANTS = {
    *("fedsgd", "fedyogi", "fedadagrad", "last client", "shapley by orders", "kept scores", "adaptive losses"),
    *("kept in periods", "moving targets in chains", "moving targets at krum", "broken in a chain", "fedprox dropping"),
    *("label averaging", "alie", "inner product", "gaussian", "clipped lies", "adaptive norm", "asynchronous median"),
    "standardized under masks",
}
"""The cases that are much like another one; their plain run is slow as well."""

IDENTITIES = (
    *("fedavg", "fedmedian", "geometric median", "cosine filter", "adafed", "adafed odds", "moving targets", "shapley"),
    *("focus", "scaffold", "fedcyclic", "mediators", "warm start", "local only", "fedexp", "afl", "last client"),
    *("changed settings", "kept scores"),
)
"""The cases that with one client are plain training."""

ONLY_SIMULATED = {
    *("streams", "weighted draws", "label averaging", "unseen clients", "clients' parts"),  # the pool hands out plain examples
    *("attackers", "alie", "inner product", "clipped lies", "own option", "fedasync"),  # attackers are told of the others
    *("local privacy", "private examples", "asynchronous median", "adaptive norm"),  # a site draws its noise by its own secret
    *("secure", "standardized under masks", "mocha", "fedrep"),  # need what this pool has not, or what stays at the sites
}
"""The cases that do not go over bytes."""

_KEPT = ("kept optimizers", "kept in periods", "streams", "fedbuff", "ditto", "moon", "apfl")
_IN_STEPS = ("moving targets", "moving targets in chains", "moving targets at krum", "python state", "hidden tensors")
_OTHER = ("fedrep", "fedbabu", "pfedme", "changed settings", "unusual buffers", "k-means")
REFUSED: dict[str, dict[str, type[Exception]]] = {
    "fabric": {"streams": EngineError, "k-means": EngineError},
    "stacked": {
        **dict.fromkeys((*_KEPT, *_IN_STEPS, *_OTHER), EngineError),
        **dict.fromkeys(("unreliable", "private examples", "mocha"), ConfigurationError),
    },
    "bytes": {"unusual buffers": WireError},
    "two ranks": {"unusual buffers": RuntimeError},  # gloo sends no float8
}
"""Cases that a way refuses, with the class of the error."""

NEAR = 2e-5
"""What rounding may change with the engine ``stacked``, and over bytes for losses that clients sum over other batches."""

OTHERWISE = {
    "resumed": r"(logged at the end|round 2 / logged) / .*: only in the first file",
    "killed": r"logged at the end / .*: only in the first file",
    "fabric": r"checkpoint / federation: (engine|settings):",
    "bytes": r"(messages|kept|round \d / hooks|checkpoint / federation: (settings|memory)):",
    "two ranks": r"(round \d / (hooks|logger)|.* / val_\w*(loss|distance)|checkpoint / (loops|.*(random_state|memory))):",
}
"""What differs from the plain run for a reason, as a pattern.

Figures of rounds before the checkpoint, which Lightning's ``callback_metrics`` no longer has. The order in which clients train,
and in two ranks what each saw; the sites' own memory; the state of each process's loop; and val_loss, of which Lightning's
``sync_dist`` counts 30 examples instead of 30.5 on each of two ranks.
"""

_KEYS = r"(checkpoint / federation: totals|.*(bytes_up|bytes_down|megabytes_total)|round 2 / (aggregated|logger)):"
MORE = {
    **{(way, case): _KEYS for way in ("resumed", "killed") for case in ("secure", "standardized under masks")},
    ("two ranks", "fedmedian"): r"round \d / (clients|fields at the clients / .* / model):",
}
"""What differs as well in single cases: clients that mask their updates agree on keys once more, after a process has ended; and
the models that a strategy needs are in files.
"""


def each(way: str, of: tuple[str, ...] = CASES) -> list[Any]:
    """Return the cases of a way, of which those that are not quick are slow."""
    return [pytest.param(case, marks=() if case in QUICK[way] else pytest.mark.slow) for case in of]


def unlike(way: str, case: str, plain: Record, other: Record) -> list[str]:
    """Return the places where a way left something else than the plain run."""
    patterns = OTHERWISE[way], MORE.get((way, case), "never")
    return [line for line in differences(plain, other) if not any(re.match(pattern, line) for pattern in patterns)]


def far(plain: Run, other: Run) -> list[str]:
    """Return the tensors and figures that are not the plain run's up to rounding."""
    assert plain.tensors.keys() == other.tensors.keys()
    assert plain.figures.keys() == other.figures.keys()
    found = [name for name, one in plain.tensors.items() if not torch.allclose(one, other.tensors[name], NEAR, NEAR)]
    return found + [name for name, one in plain.figures.items() if other.figures[name] != pytest.approx(one, NEAR, NEAR)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """Return the run of a case by the engine ``trainer`` on one rank."""
    return functools.cache(lambda case: ways.fit(case, tmp_path_factory.mktemp("plain"), "trainer"))


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] if c in VARIANTS else []) for c in CASES])
def test_a_case_trains(case: str, plain: Plain) -> None:
    run = plain(case)
    models = [one["model"] for one in run.rounds.values()]
    assert len(set(models)) == len(models) == ways.ROUNDS
    assert all(bool(torch.isfinite(tensor.float()).all()) for tensor in run.tensors.values())  # float8 lacks it


def in_this_process() -> list[Any]:
    """Return the ways in this process, each with its cases."""
    of = {way: tuple(case for case in CASES if way != "bytes" or case not in ONLY_SIMULATED) for way in TRAINED}
    return [pytest.param(way, *one.values, marks=one.marks) for way in TRAINED for one in each(way, of[way])]


@pytest.mark.parametrize(("way", "case"), in_this_process())
def test_the_same_in_this_way(way: str, case: str, plain: Plain, tmp_path: Path) -> None:
    if case in REFUSED.get(way, {}):
        with pytest.raises(REFUSED[way][case]):
            TRAINED[way](case, tmp_path, plain(case))
        return
    run = TRAINED[way](case, tmp_path, plain(case))
    near = way == "stacked" or (way == "bytes" and case in ("focus", "afl"))
    assert (far(plain(case), run) if near else unlike(way, case, plain(case).record, run.record)) == []


def asked(request: pytest.FixtureRequest, test: Callable[..., None]) -> list[str]:
    """Return the cases for which this session runs a test, for one launch that trains them all."""
    items: list[Any] = request.session.items
    return [item.callspec.params["case"] for item in items if getattr(item, "originalname", "") == test.__name__]


@pytest.fixture(scope="module")
def on_two_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Return what two ranks make of the cases."""
    return ways.two_ranks(asked(request, test_two_ranks), tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", each("two ranks"))
def test_two_ranks(case: str, plain: Plain, on_two_ranks: dict[str, Record]) -> None:
    found = on_two_ranks[case]
    if case in REFUSED["two ranks"]:
        assert found["refused"] == REFUSED["two ranks"][case].__name__
    else:
        assert unlike("two ranks", case, plain(case).record, found) == []


@pytest.fixture(scope="module")
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Return what is left of the cases where one process after the other is killed at a random moment."""
    names, draw = asked(request, test_killed_and_resumed_with_the_same_command), random.Random(0)
    kills = min(len(names), 20)
    lives = sorted(draw.uniform(0.05, 0.5) * len(names) / kills for _ in range(kills))  # the first ends before its work is done
    return ways.killed(names, tmp_path_factory.mktemp("killed"), lives)


@pytest.mark.parametrize("case", each("killed"))
def test_killed_and_resumed_with_the_same_command(case: str, plain: Plain, killed: dict[str, Record]) -> None:
    assert unlike("killed", case, plain(case).left, killed[case]) == []


@pytest.mark.parametrize("case", each("one client", IDENTITIES))
def test_one_client_is_plain_lightning_training(case: str) -> None:
    assert ways.far_from_plain(case) < 1e-12
