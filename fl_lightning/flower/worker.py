"""The resident worker of a site: it loads the data once, and answers what the SuperNode hands it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import warnings
from pathlib import Path

_PAUSE = 0.05


def main() -> None:
    """Answer messages until the parent ends this process."""
    parser = argparse.ArgumentParser()
    for name in ("name", "data", "folder", "address", "secret"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    sys.path.append(str(Path.cwd()))  # dotted paths in data.yaml may name modules in this folder
    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")

    from fl_lightning.compat.flower import SiteLink
    from fl_lightning.errors import FederationError
    from fl_lightning.flower.site import say
    from fl_lightning.flower.site_data import SiteData, read_settings
    from fl_lightning.flower.site_server import SiteServer

    try:
        settings = read_settings(Path(arguments.data))
        data = SiteData(settings)
    except FederationError as error:
        say(f"error: {error}")
        sys.exit(1)
    server = SiteServer(arguments.name, data, settings.policy, Path(arguments.folder), settings.torch_device(), say)
    say(f"{data.size('training')} training examples. Waiting for the server.")
    link = SiteLink(arguments.address, Path(arguments.secret).read_bytes())
    parent = os.getppid()
    while os.getppid() == parent:
        task = None
        try:
            with link.task() as task:
                if task is not None:
                    task.reply(server.answer(task.parts))
        except Exception as error:  # the SuperNode may be starting again
            say(f"The SuperNode did not answer ({type(error).__name__}).")
            time.sleep(1)
        if task is None:
            time.sleep(_PAUSE)


if __name__ == "__main__":
    main()
