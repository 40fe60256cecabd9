"""A round over a slow line that breaks: what is said meanwhile, seconds and bytes, and a comparison with the simulation."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from federation_demo import CONFIG, Federation, digits, same_bits, weights

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from relay import Relay, cuts_of, rate_of

LIFE = 6 * 3600
"""The seconds after which a fit counts as hung."""


@contextmanager
def following(paths: dict[str, Path], begun: float) -> Iterator[None]:
    """Print each new line of some logs, with the seconds since the beginning."""
    done, read = threading.Event(), dict.fromkeys(paths, 0)

    def look() -> None:
        for name, path in paths.items():
            new = path.read_bytes()[read[name] :] if path.exists() else b""
            whole = new[: new.rfind(b"\n") + 1]
            read[name] += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                if line.strip() and "Warning" not in line:
                    print(f"{time.monotonic() - begun:7.0f} s  {name}: {line.strip()[:200]}", flush=True)

    def follow() -> None:
        while not done.wait(0.5):
            look()
        look()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def prepared(folder: Path, hidden: list[int], rounds: int, sites: int) -> Federation:
    """Return a federation with a network of these layers."""
    federation = Federation(folder, [f"site_{k}" for k in range(sites)], life=LIFE)
    federation.prepare(*digits(100 + 300 * sites), test=100)
    config = yaml.safe_load(CONFIG)
    config["model"]["init_args"]["network"]["init_args"]["hidden"] = hidden
    config["trainer"]["max_epochs"] = rounds
    (folder / "server" / "config.yaml").write_text(yaml.safe_dump(config))
    return federation


def cut(relay: Relay, cuts: list[str], size: float, say: Callable[[str], None]) -> None:
    """Cut a line, at times that count from when a model begins to travel, or when so much of the first model has travelled.

    Args:
        relay: the line.
        cuts: such as '60@30', '60@down', '60@train' and '600@up', in this order.
        size: the model's bytes.
        say: prints a line.
    """
    moments = {"down": ("down", size / 3), "train": ("down", size), "up": ("up", size / 3)}
    _wait(relay, "down", min(1e6, size / 3))
    say("the model begins to travel")
    begun = time.monotonic()
    for seconds, start in cuts_of(cuts):
        if start in moments:
            _wait(relay, *moments[start])
        else:
            time.sleep(max(0.0, begun + float(start) - time.monotonic()))
        down, up = (relay.bytes[way] / 1e6 for way in ("down", "up"))
        say(f"the line is cut for {seconds:g} s, after {down:.1f} MB down and {up:.1f} MB up")
        relay.cut(seconds)
        time.sleep(seconds)
        say("the line is whole again")


def _wait(relay: Relay, way: str, size: float) -> None:
    while relay.bytes[way] < size:
        time.sleep(0.1)


def measure(folder: Path, hidden: list[int], megabytes: float, args: argparse.Namespace, sites: int) -> None:
    """Run one fit behind a relay for each site, and print what happens."""
    federation = prepared(folder, hidden, args.rounds or 1, sites)
    more = ("--federation.local.max_epochs", str(args.epochs))
    with ExitStack() as held:
        federation.serve()
        held.callback(federation.stop)
        relays = [held.enter_context(Relay(federation.port, rate_of(args.link))) for _ in federation.names]
        federation.register()
        for name, relay in zip(federation.names, relays, strict=True):
            federation.start_site(name, relay.port)
        begun = time.monotonic()
        logs = {"fit": folder / "server" / "fit.log"} | {name: folder / name / "site.log" for name in federation.names}
        held.enter_context(following(logs, begun))
        fit = federation.start_fit("--trainer.default_root_dir", "run", *more)

        def say(line: str) -> None:
            print(f"{time.monotonic() - begun:7.0f} s  {line}", flush=True)

        for relay in relays:
            threading.Thread(target=cut, args=(relay, args.cut, megabytes * 1e6, say), daemon=True).start()
        status = fit.wait(LIFE)
        seconds, moved = time.monotonic() - begun, [relay.bytes for relay in relays]
    if status:
        raise SystemExit((folder / "server" / "fit.log").read_text()[-3000:])
    federation.call("server", "fit", "--config", "config.yaml", "--trainer.default_root_dir", "simulated", *more)
    same = same_bits(weights(folder / "server" / "simulated"), weights(folder / "server" / "run"))
    down, up = (", ".join(f"{one[way] / 1e6:.1f}" for one in moved) for way in ("down", "up"))
    print(f"{seconds:.0f} s for {args.rounds or 1} rounds over {args.link}; MB to each site {down}, from each {up}; ", end="")
    print("the bits of the simulation" if same else "OTHER BITS THAN THE SIMULATION")
    print(json.dumps({"seconds": seconds, "bytes": moved, "same": same}))


def line(args: argparse.Namespace, layers: list[tuple[float, list[int]]]) -> None:
    """Measure each number of sites with each model.

    Args:
        args: the command's arguments.
        layers: the models, as megabytes with hidden layers.
    """
    for sites in args.sites:
        for megabytes, hidden in layers:
            cuts = f", cut {', '.join(args.cut)}" if args.cut else ""
            print(f"{sites} sites, {megabytes:g} MB, {args.link} each way{cuts}", flush=True)
            with tempfile.TemporaryDirectory() as place:
                (Path(place) / "federation").mkdir()
                measure(Path(place) / "federation", hidden, megabytes, args, sites)
