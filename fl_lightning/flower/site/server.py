"""Answer a server's requests at a site, as bytes, over any transport. What a server sends is data, never code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule

from fl_lightning.clients.client import Client
from fl_lightning.clients.site import Site
from fl_lightning.core.option import SitePlace
from fl_lightning.errors import WireError
from fl_lightning.flower import envelope
from fl_lightning.flower.site.audit import AuditLog, SiteErrors, in_words
from fl_lightning.flower.site.budget import SiteBudget
from fl_lightning.flower.site.contract import build, check_contract
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.limits import SiteLimits
from fl_lightning.flower.site.policy import Form, Masks, Policy, read_peers
from fl_lightning.flower.site.questions import SiteQuestions
from fl_lightning.flower.site.recipe import RefusedError
from fl_lightning.flower.site.release import numbers_of, released
from fl_lightning.flower.site.store import SiteRecord, SiteStore, digest_of, settings_of, whole_digest
from fl_lightning.flower.validation import listed, require_message, require_model, require_order
from fl_lightning.flower.wire.transport import Content, Parts
from fl_lightning.functional.exact_moments import Moments
from fl_lightning.messages import ClientInfo, ClientTask, EvalOrder, EvalReport, Note, RoundCommit, ServerModel
from fl_lightning.settings.local_training import FederationSettings
from fl_lightning.types import ClientFailure, ClientUpdate
from fl_lightning.wire import from_bytes

_SUMS = "The data of this site have changed since it told {}, and the difference would tell about the rows that changed."
_MOST_ORDERS = 100
"""How many orders of a message the log names."""


@dataclass
class _Work:
    """Hold the federation that the site works for."""

    federation: str
    contract: Mapping[str, Any]
    module: LightningModule
    client: Client
    settings: FederationSettings
    site: Site
    store: SiteStore
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
        key: the site's private key.
    """

    def __init__(
        self,
        name: str,
        data: SiteData,
        policy: Policy,
        folder: Path,
        device: torch.device = torch.device("cpu"),  # noqa: B008
        say: Callable[[str], None] = print,
        key: bytes = b"",
    ) -> None:
        self._name, self._policy, self._folder = name, policy, folder
        self._data, self._device, self._print, self._key = data, device, say, key
        self._peers = read_peers(policy)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._audit, self._record = AuditLog(folder / "audit.jsonl"), SiteRecord(folder, policy, name)
        self._limits, self._questions = SiteLimits(policy), SiteQuestions(folder, policy, self._record)
        self._errors = SiteErrors(folder, self._say, uniform=policy.update != Form())
        self._account = None if policy.budget is None else SiteBudget(policy.budget, data.names_persons)
        self._work: _Work | None = None

    def _say(self, line: str) -> None:
        self._print(envelope.printable(line))

    def _reply(self, **content: Any) -> Content:
        return envelope.reply(log=self._audit.last, **content)

    def answer(self, parts: Parts) -> Content:
        """Return the reply to a request; an error is told by class and code, without data.

        Nothing but a code leaves a site that cannot write its audit log.

        Args:
            parts: ``order``, an envelope; ``model``, the global model if the order needs one that this site may lack.
        """
        try:
            return self._answer(parts)
        except (Exception, SystemExit) as error:  # a library may end the process, as parsers do
            reply = self._reply(error=self._errors.told(error))
            try:
                self._audit.record("out", "error", reply, (), error=type(error).__name__)
            except Exception:  # a full disk
                return envelope.reply(error=self._errors.coded(error))
            return reply

    def _answer(self, parts: Parts) -> Content:
        size = sum(map(len, parts.values()))
        most = self._policy.machine.memory
        if size > most * 2**30:
            raise RefusedError(f"The message has {size} bytes, but this site accepts {most:g} GiB ('policy.machine.memory').")
        if set(parts) not in ({"order"}, {"order", "model"}):
            raise WireError("The message does not have the expected parts.")
        asked = envelope.opened(parts["order"], envelope.KINDS)
        federation, kind = asked.get("federation", ""), asked["kind"]
        orders, contract = asked.get("orders", ()), asked.get("contract")
        details: dict[str, Any] = {}
        if isinstance(orders, tuple) and orders:
            details["orders"] = list(map(in_words, orders[:_MOST_ORDERS]))  # nothing is checked yet
        if isinstance(contract, Mapping):
            model = contract.get("model")
            named = str(model.get("class_path") if isinstance(model, Mapping) else None)[:100]
            details |= {"settings": digest_of(settings_of(contract)), "model": named}
        self._audit.record("in", kind, parts["order"], asked, federation, **details)
        if kind == "work":
            return self._carry_out(asked, parts)
        info = self._described(asked) if kind == "describe" else None
        if info is None:
            self._prepare(asked)
        content, told = ({}, {}) if info is None else ({"info": info}, {"told": numbers_of(info)})
        reply = self._reply(**content)
        self._audit.record("out", kind, reply, (), federation, **told)
        return reply

    def _described(self, asked: Mapping[str, Any]) -> ClientInfo:
        """Return what the site tells a server that asks about its data: sums and counts of rows only once."""
        if self._data.needs_schema and not asked.get("schema"):
            raise RefusedError(
                "Missing values of this site's tables become the most frequent category of all sites, which a server without a "
                "schema does not know. Set 'data.datamodule.schema' at the server."
            )
        self._take_number(asked.get("client"))
        self._limits.check_training(self._data)
        wanted = [asked.get(what, False) for what in ("statistics", "summed")]
        if any(type(one) is not bool for one in wanted):
            raise WireError("The request does not say whether it asks for statistics.")
        info: ClientInfo = released(self._data.info(self._name, self._policy, *wanted), self._policy)
        if info.moments:
            self._record.keep_once("statistics", info.moments, _SUMS.format("the sums of its inputs"))
        if info.label_counts is not None:
            self._record.keep_once("label_counts", info.label_counts, _SUMS.format("the counts of its classes"))
        if self._data.names("feature_names") is not None and not info.schema:
            self._say("The tables have no schema, so their units are not compared with those of other sites: docs/schema.md.")
        return info

    def _summand(self) -> Moments:
        """Return the sums of the site's inputs, which leave in a sum over sites only."""
        found = self._data.moments(self._policy, summed=True)
        if found is None:
            raise RefusedError(
                "This site does not tell the sums of its inputs, also not in a sum over sites. If its staff agrees, they add "
                "'statistics' to 'policy.tells' in data.yaml; with 'policy.update.noise' it tells none."
            )
        self._record.keep_once("statistics", found, _SUMS.format("the sums of its inputs"))
        return Moments.of_texts(found)

    def _take_number(self, client: Any) -> int:
        if type(client) is not int or not 0 <= client < 10**6:
            raise WireError("The request does not give this site a number.")
        if self._data.draws_parts:
            self._record.keep_once("number", client, f"The server calls this site client {client}, which was not its number.")
        self._data.take_number(client)
        return client

    # ---------------------------------------------------------------- the federation

    def _prepare(self, asked: Mapping[str, Any]) -> _Work:
        """Return the federation that the server names, with the model and the settings that it wants, built if necessary."""
        federation, contract, client = asked.get("federation"), asked.get("contract"), asked.get("client")
        if not isinstance(federation, str) or type(client) is not int:
            raise WireError("The request does not name a federation and a client.")
        known = self._work
        if known is not None and (known.federation, known.contract, self._data.client_id) == (federation, contract, client):
            return known
        check_contract(contract, self._policy, client)
        assert isinstance(contract, Mapping)
        self._work = None
        self._take_number(contract["numbers"][client])
        self._data.client_id = client
        with self._record.admission(federation, contract):
            place = self._place(federation, contract)
            built = build(contract, self._data, self._policy, self._device, self._errors.told, place)
            module, trained, settings = built
            self._limits.check_turn(ClientTask(client, 0), settings, self._data)
            self._limits.check_training(self._data)
            if self._account is not None:
                self._account.require_noise(settings, ClientTask(client, 0), self._data)
        self._audit.settings(digest_of(settings_of(contract)), contract, federation)
        store = SiteStore(self._folder, federation)
        site = Site(trained)
        kept = store.load()
        if kept is not None:
            site.load_state_dict(kept)
        self._work = _Work(federation, contract, *built, site, store)
        self._say(f"Ready as client {client}: {type(module).__name__}, federation {federation[:8]}.")
        return self._work

    def _place(self, federation: str, contract: Mapping[str, Any]) -> SitePlace:
        masks = self._policy.update.masks or Masks("")
        return SitePlace(
            name=self._name,
            key=self._key,
            peers=self._peers,
            folder=self._folder,
            federation=federation,
            contract=whole_digest(contract),
            min_cohort=masks.least,
            max_lost=masks.lost,
            told=self._told,
            moments=self._summand,
            hides_steps="steps" not in self._policy.told,
        )

    def _carry_out(self, asked: Mapping[str, Any], parts: Parts) -> Content:
        work = self._prepare(asked)
        key = hashlib.sha256(parts["order"]).hexdigest()
        cached = work.store.reply(key)
        if cached is not None:
            self._say("Answered a repeated order from the store.")
            replies = envelope.opened(cached, ("reply",)).get("replies", ())
            return self._sent(work, cached, replies, stored=True)
        orders, settlements, notes = (listed(asked, name) for name in ("orders", "settlements", "notes"))
        self._check(work, orders, settlements, notes)
        model = self._received(work, parts)
        known = work.model if model is None else model
        if orders and (known is None or known.version != asked.get("model_version")):
            return self._sent(work, self._reply(needs="model"), ())
        turns = (len(order.tasks) if isinstance(order, EvalOrder) else isinstance(order, ClientTask) for order in orders)
        evaluated = sum(isinstance(order, EvalOrder) for order in orders)
        self._record.count_orders(work.federation, sum(turns), evaluated)
        for order in orders:
            if self._account is not None and isinstance(order, ClientTask):
                self._account.charge(work.federation, order, work.settings, self._data)
        for settlement in settlements:
            work.site.handle(settlement)
        if model is not None:
            tensors, first = ({k: t.to(self._device) for k, t in each.items()} for each in (model.tensors, model.first))
            here = replace(model, tensors=tensors, first=first)
            for round_idx in work.site.dropped_by(here):
                self._say(f"Round {round_idx}: dropped: the server has started again and does not know it.")
            work.site.handle(self._limits.without_checks(here, work.settings.active_options))
            work.model = model
        for note in notes:
            work.site.handle(note)
        self._questions.check(orders, known, self._data, work.site.own_model)
        replies = [released(self._one(work, order), self._policy) for order in orders]
        found = work.client.counts()
        counts = {name: {str(client): n for client, n in numbers.items()} for name, numbers in found.items()}
        reply = self._sent(work, self._reply(replies=replies, releases=counts), replies, releases=counts)
        final = not any(isinstance(one, ClientFailure | Note) for one in replies)  # answers may hold shares of keys
        work.store.save(work.site.state_dict(), key, reply if final else None)
        return reply

    def _check(self, work: _Work, orders: Sequence[Any], settlements: Sequence[Any], notes: Sequence[Any]) -> None:
        for settlement in settlements:
            require_message(settlement, RoundCommit)
        for note in notes:
            require_message(note, Note)
            if note.client != self._data.client_id:
                raise WireError("A message is for another client.")
        settings = work.settings
        for order in orders:
            require_message(order, ClientTask, EvalOrder, Note)
            if not work.contract["trains"] and not getattr(order, "question", None):
                raise RefusedError("This site has agreed to evaluate models alone, so it answers questions, and nothing else.")
            if not isinstance(order, Note):
                self._limits.check_order(order, settings, self._data)

    def _sent(self, work: _Work, reply: Content, replies: Sequence[Any], **more: Any) -> Content:
        """Return a reply after it has been written down, with more details."""
        details: dict[str, Any] = {"replies": list(map(in_words, replies)), **more}
        self._audit.record("out", "work", reply, {"replies": replies}, work.federation, **details)
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
        require_model(model, work.module)
        return model  # type: ignore[no-any-return]

    def _one(self, work: _Work, order: ClientTask | EvalOrder | Note) -> Any:
        resident = work.client.resident
        client = self._data.client_id
        assert client is not None
        require_order(order, resident.view(), resident.server.broadcast, client)
        if isinstance(order, Note):
            return work.client.answer(order)
        settings = work.settings
        self._limits.check_buffers(settings.active_options, resident.view())
        result = self._computed(work, order)
        if isinstance(order, ClientTask):
            self._say(f"Round {order.round_idx}: {'failed' if isinstance(result, ClientFailure) else 'trained'}.")
        if isinstance(result, ClientUpdate) and not any(option.seals for option in settings.active_options):
            self._limits.check_work(result)
        return result

    def _told(self, update: ClientUpdate) -> ClientUpdate:
        """Return an update that an option is about to seal, with the figures that may leave."""
        self._limits.check_work(update)
        return released(update, self._policy, summed=True)  # type: ignore[no-any-return]

    def _computed(self, work: _Work, order: ClientTask | EvalOrder) -> ClientUpdate | ClientFailure | EvalReport:
        """Return the result of an order.

        After too many failures the federation waits for the staff; see :attr:`Policy.most_failures`.
        """
        failed = True
        try:
            result = work.site.handle(order)
            assert result is not None
            assert not isinstance(result, Note)
            failed = isinstance(result, ClientFailure)
        finally:
            most = self._policy.most_failures
            if failed and most is not None and self._record.note_failure(work.federation, most):
                self._work = None  # so that the next order asks for the staff's agreement
        return result
