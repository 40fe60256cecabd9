"""Answer a server's requests at a site, as bytes, over any transport. What a server sends is data, never code."""

from __future__ import annotations

import hashlib
import secrets
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fl_lightning.clients.site import Site
from fl_lightning.errors import WireError
from fl_lightning.flower import envelope
from fl_lightning.flower.audit import AuditLog
from fl_lightning.flower.contract import Built, build, check_contract
from fl_lightning.flower.policy import Policy
from fl_lightning.flower.recipe import RefusedError
from fl_lightning.flower.site_data import SiteData
from fl_lightning.flower.site_state import SiteStore
from fl_lightning.flower.validation import require_message, require_model, require_order
from fl_lightning.messages import ChainReport, EvalOrder, EvalReport, ServerModel, Settlement, TrainOrder
from fl_lightning.types import ClientUpdate
from fl_lightning.wire import from_bytes

Parts = Mapping[str, bytes]


@dataclass
class _Work:
    """Hold the federation that the site works for."""

    federation: str
    contract: Mapping[str, Any]
    built: Built
    site: Site
    store: SiteStore
    turns: int
    """How many trained models the site has sent in this federation, in earlier processes as well."""
    model: ServerModel | None = None


class SiteServer:
    """Answer requests.

    Args:
        name: the site's name.
        data: the site's data.
        policy: what a server may have this site do.
        folder: the site's folder, for state, audit log and the details of errors.
        device: the device to train on.
        say: prints a line for the site's staff.
    """

    def __init__(
        self,
        name: str,
        data: SiteData,
        policy: Policy,
        folder: Path,
        device: torch.device = torch.device("cpu"),  # noqa: B008
        say: Callable[[str], None] = print,
    ) -> None:
        self._name, self._data, self._policy, self._folder = name, data, policy, folder
        self._device, self._say = device, say
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._audit = AuditLog(folder / "audit.jsonl")
        self._work: _Work | None = None

    def answer(self, parts: Parts) -> bytes:
        """Return the reply to a request; an error is told by class and code, without data.

        Args:
            parts: ``order``, an envelope; ``model``, the global model if the order needs one that this site may lack.
        """
        try:
            return self._answer(parts)
        except Exception as error:
            return envelope.reply(error=self.told(error))

    def told(self, error: Exception) -> str:
        """Return what the server learns of an error, and write the rest to the site's log.

        The text of an error is told only if it is about the server's own message.
        """
        if isinstance(error, RefusedError | WireError):
            self._say(f"Refused: {error}")
            return f"{type(error).__name__}: {error}"
        code = secrets.token_hex(4)
        with open(self._folder / "errors.log", "a", encoding="utf-8") as file:
            file.write(f"--- code {code}\n{''.join(traceback.format_exception(error))}")
        self._say(f"{type(error).__name__} (code {code}): see {self._folder / 'errors.log'}")
        return f"{type(error).__name__} (code {code}; its text is in the site's errors.log)"

    def _answer(self, parts: Parts) -> bytes:
        size = sum(map(len, parts.values()))
        if size > self._policy.largest_message * 2**20:
            raise RefusedError(f"The message has {size} bytes, but this site accepts {self._policy.largest_message} MiB.")
        if set(parts) not in ({"order"}, {"order", "model"}):
            raise WireError("The message does not have the expected parts.")
        asked = envelope.opened(parts["order"], envelope.KINDS)
        federation = asked.get("federation")
        self._audit.record("in", asked["kind"], parts["order"], asked, federation)
        if asked["kind"] == "describe":
            reply = envelope.reply(info=self._data.info(self._name, self._policy.label_counts))
        elif asked["kind"] == "prepare":
            self._prepare(asked)
            reply = envelope.reply()
        else:
            return self._carry_out(asked, parts)
        self._audit.record("out", asked["kind"], reply, (), federation)
        return reply

    # ---------------------------------------------------------------- the federation

    def _prepare(self, asked: Mapping[str, Any]) -> None:
        """Build the model and the settings that the server names, unless they are here already."""
        federation, contract, client = asked.get("federation"), asked.get("contract"), asked.get("client")
        if not isinstance(federation, str) or type(client) is not int:
            raise WireError("The request does not name a federation and a client.")
        known = self._work
        if known is not None and (known.federation, known.contract, self._data.number) == (federation, contract, client):
            return
        check_contract(contract, self._policy, client)
        assert isinstance(contract, Mapping)
        self._work, self._data.number = None, client
        store = SiteStore(self._folder, federation)
        built = build(contract, self._data, self._policy, self._device, self.told)
        site = Site(built.runtime)
        kept = store.load()
        if kept is not None:
            site.load_state_dict(kept)
        turns = 0 if kept is None else int(kept.get("turns", 0))
        self._work = _Work(federation, contract, built, site, store, turns)
        self._say(f"Ready as client {client}: {type(built.module).__name__}, federation {federation[:8]}.")

    def _carry_out(self, asked: Mapping[str, Any], parts: Parts) -> bytes:
        self._prepare(asked)
        work = self._work
        assert work is not None
        key = hashlib.sha256(parts["order"]).hexdigest()
        cached = work.store.reply(key)
        if cached is not None:
            self._say("Answered a repeated order from the store.")
            return cached
        orders, settlements = asked.get("orders"), asked.get("settlements")
        if not isinstance(orders, tuple) or not isinstance(settlements, tuple):
            raise WireError("The request does not have orders and settlements.")
        for settlement in settlements:
            require_message(settlement, Settlement)
        for order in orders:
            require_message(order, TrainOrder, EvalOrder)
            self._policy.check_order(order, work.built.settings.local)
        self._policy.check_turns(work.turns, sum(isinstance(order, TrainOrder) for order in orders))
        model = self._received(work, parts)
        known = work.model if model is None else model
        if orders and (known is None or known.version != asked.get("model_version")):
            return envelope.reply(needs="model")
        for settlement in settlements:
            work.site.handle(settlement)
        if model is not None:
            tensors, first = ({k: t.to(self._device) for k, t in each.items()} for each in (model.tensors, model.first))
            work.site.handle(replace(model, tensors=tensors, first=first))
            work.model = model
        replies = [self._one(work, order) for order in orders]
        releases = work.built.runtime.releases()
        told = {kind: {str(client): n for client, n in counts.items()} for kind, counts in releases.items()}
        reply = envelope.reply(replies=replies, releases=told)
        self._audit.record("out", "work", reply, {"replies": replies}, work.federation)
        reports = [one for one in replies if isinstance(one, ChainReport)]
        work.turns += sum(bool(one.updates) for one in reports)
        final = all(not one.failures for one in reports)
        work.store.save({**work.site.state_dict(), "turns": work.turns}, key, reply if final else None)
        return reply

    def _received(self, work: _Work, parts: Parts) -> ServerModel | None:
        """Return the model in a request, with the tensors that it shares with the one here; None if it is not there."""
        if "model" not in parts:
            return None
        model, known = from_bytes(parts["model"]), work.model
        require_message(model, ServerModel)
        self._audit.record("in", "model", parts["model"], model, work.federation)
        if model.base:
            if known is None or known.version != model.base:
                return None
            model = replace(model, tensors={**known.tensors, **model.tensors}, first=known.first, base=0)
        require_model(model, work.built.module)
        return model  # type: ignore[no-any-return]

    def _one(self, work: _Work, order: TrainOrder | EvalOrder) -> ChainReport | EvalReport:
        resident = work.built.runtime.resident
        client = self._data.number
        assert client is not None
        require_order(order, resident.view(), resident.server.broadcast, client)
        settings = work.built.settings
        self._policy.check_buffers(settings.transforms, settings.local, resident.view())
        result = work.site.handle(order)
        assert result is not None
        if isinstance(result, ChainReport):
            result = replace(result, updates=tuple(map(_as_sent, result.updates)))
        if isinstance(order, TrainOrder):
            self._say(f"Round {order.jobs[0].round_idx}: {'failed' if not result.updates else 'trained'}.")  # type: ignore[union-attr]
        return result


def _as_sent(update: ClientUpdate) -> ClientUpdate:
    """Return an update without the model if it carries that in a compressed form."""
    return update if update.compressed is None else replace(update, model=None)
