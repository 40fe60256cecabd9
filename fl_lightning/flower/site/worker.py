"""The resident worker of a site: it loads the data once, and answers what the SuperNode hands it."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fl_lightning.flower import envelope
from fl_lightning.flower.site.processes import ALIVE, UNUSABLE, give_signs_of_life
from fl_lightning.utilities.allocator import share_heaps

_ASK = 0.1, 1.0
"""The shortest and the longest pause in seconds between two questions for a message: a fiftieth of the time since the last."""
_LOOK = 2.0
"""The seconds between two checks that the run is still active."""


def main() -> None:
    """Answer messages until the parent ends this process."""
    arguments = SimpleNamespace(**json.loads(sys.argv[1]))
    share_heaps()
    give_signs_of_life(Path(arguments.folder) / ALIVE)
    sys.path.append(str(Path.cwd()))  # dotted paths in data.yaml may name modules in this folder
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")

    from fl_lightning.compat.flower_site import RunWatch, SiteLink
    from fl_lightning.errors import FederationError
    from fl_lightning.flower.site.data import SiteData
    from fl_lightning.flower.site.parent import say
    from fl_lightning.flower.site.server import SiteServer
    from fl_lightning.flower.site.settings import read_settings

    folder, key = Path(arguments.folder), Path(arguments.key).read_bytes()
    try:
        settings = read_settings(Path(arguments.data))
        device, data = settings.torch_device(), SiteData(settings)
    except FederationError as error:
        say(f"error: {error}")
        sys.exit(UNUSABLE)
    server = SiteServer(arguments.name, data, settings.policy, folder, device, say, key)
    say(f"{data.size('training')} training examples. Waiting for the server.")
    roots = Path(arguments.ca).read_bytes() if arguments.ca else None
    link, watch = SiteLink(arguments.address, Path(arguments.secret).read_bytes()), RunWatch(arguments.server, roots, key)
    _work(link, server, watch, say)


def _work(link: Any, server: Any, watch: Any, say: Callable[[str], None]) -> None:
    """Answer messages until the parent process ends.

    Args:
        link: the link to the SuperNode.
        server: answers requests.
        watch: tells whether a run is active.
        say: prints a line.
    """
    from fl_lightning.functional.recycling import release_unused_memory  # with torch, which comes after 'share_heaps'

    parent, since = os.getppid(), time.monotonic()
    while os.getppid() == parent:
        task, answered = None, False
        try:
            with link.task() as task:
                if task is not None:
                    with _ended_with(watch, task, say):
                        reply = server.answer(task.parts)
                    release_unused_memory()  # the SuperNode needs as much for the reply
                    task.reply(reply)
                    answered = True
                    del reply  # it may hold a model, as the task does
        except Exception as error:
            say(f"The SuperNode did not answer ({type(error).__name__}).")
            if task is not None and not answered and not link.is_gone(error):
                sys.exit(1)  # a SuperNode waits for ever for a worker that lives and does not answer
            time.sleep(1)  # it may be starting again
        if task is None:
            time.sleep(min(_ASK[1], max(_ASK[0], (time.monotonic() - since) / 50)))
        else:
            since = time.monotonic()


@contextmanager
def _ended_with(watch: Any, task: Any, say: Callable[[str], None]) -> Iterator[None]:
    """End this process if the server ends the run meanwhile. Its parent starts another; the site's state is on disk."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(_LOOK):
            if watch.ended(task) and not done.is_set():
                say("The server has ended the run. Stopping the training.")
                with suppress(Exception):  # frees the SuperNode, which waits for an answer
                    task.reply(envelope.reply(error="stopped"))
                os.kill(os.getpid(), signal.SIGKILL)  # training may be in the middle of a long call

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        done.set()


if __name__ == "__main__":
    main()
