"""One site, and a server that asks it whatever it likes."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sites_over_bytes import of, prepare, restart

import fl_lightning
from fl_lightning.clients.module_copy import client_copy
from fl_lightning.flower import envelope
from fl_lightning.flower.site.recipe import Recipe, default_classes
from fl_lightning.functional.model_state import ModelState
from fl_lightning.messages import ClientTask, ServerModel
from fl_lightning.wire import to_bytes

FEDERATION = "a" * 32
OTHER = "b" * 32


def named(name: str, **arguments: Any) -> dict[str, Any]:
    """Return the values of a class of this package."""
    return of(f"fl_lightning.{name}", **arguments)


NETWORK = named("MLP", in_features=6, hidden=[5], num_classes=3)
BATCH_NORM = named("LeNet", num_classes=3, batch_norm=True)


def sgd(**settings: Any) -> dict[str, Any]:
    return of("torch.optim.SGD", **{"lr": 0.1, **settings})


def model(**changes: Any) -> dict[str, Any]:
    """Return the values of a model, with other arguments."""
    own = {"num_classes": 3, "network": NETWORK, "loss": named("CrossEntropy"), "optimizer": sgd()}
    return named("ClassificationTask", **own | changes)


MODEL = model()


def noisy(**settings: Any) -> dict[str, Any]:
    """Return a transform that adds noise at the site."""
    return named("ClientPrivacy", **{"max_norm": 1.0, "noise_multiplier": 50.0, "noise": "local", **settings})


NOISY = {"transforms": [noisy()]}
NOISY_STEPS: dict[str, Any] = {"threads": 1, "privacy": {"noise_multiplier": 50.0, "max_grad_norm": 1.0, "delta": 1e-5}}


def contract(**changes: Any) -> dict[str, Any]:
    """Return the settings that a server sends, with sections or other values of its own."""
    parts: dict[str, Any] = {"strategy": named("FedAvg"), "route": named("ServerRoute"), "local": {"threads": 1}}
    absent = {"client_evaluation": {}, "secure_aggregation": None, "asynchronous": None, "faults": {}}
    federation: dict[str, Any] = {**parts, "transforms": [], **absent}
    sizes = {"seed": 0, "num_clients": 3, "numbers": [0, 1, 2], "threads": 1, "rounds": 3}
    values = {"model": MODEL, **sizes, "precision": "32-true", "inference_mode": True, "logger": False, "trains": True}
    sections = {name: value for name, value in changes.items() if name in federation}
    top = {name: value for name, value in changes.items() if name not in federation}
    return {**values, **top, "federation": {**federation, **sections}}


def north(**policy: Any) -> Any:
    """Start a site with 24 rows in batches of 8, or start it again; its policy has these limits only."""
    if not Path("north").exists():
        prepare(start=False)
    return restart("north", policy={"federations": "any", **policy})


def ask(site: Any, kind: str, parts: Mapping[str, bytes] | None = None, **content: Any) -> dict[str, Any]:
    """Ask a site something, and return its reply."""
    order = envelope.request(kind, **{"federation": FEDERATION, "client": 0, "contract": contract(), **content})
    return opened(site.answer({"order": order, **(parts or {})}))


def opened(content: bytes) -> dict[str, Any]:
    return dict(envelope.opened(content, ("reply",)))


def told(reply: Mapping[str, Any]) -> str:
    """Return the error in a reply, or nothing."""
    return str(reply.get("error", ""))


def server_model(values: Any = MODEL) -> ServerModel:
    state = ModelState(client_copy(Recipe(default_classes()).build(values, fl_lightning.ClassificationTask, "model")))
    return ServerModel(1, 0, state.tensors(), state.layout, session="s")


def order(client: int = 0, **changes: Any) -> ClientTask:
    return ClientTask(client, **{"round_idx": 0, "version": 1, **changes})


def work(
    site: Any, *orders: Any, session: str = "s", sent: ServerModel | None = None, federation: str = FEDERATION, **settings: Any
) -> dict[str, Any]:
    """Order something, by default a training, in a session of its own, as after a restart of the server."""
    asked = {"session": session, "model_version": 1, "orders": list(orders or (order(),)), "settlements": [], "notes": []}
    parts = {"model": to_bytes(replace(sent or server_model(), session=session))}
    return ask(site, "work", parts, **asked, federation=federation, contract=contract(**settings))
