"""Let a SuperLink keep each order until it is answered, however long a site's line is cut.

Flower 1.41 answers an order with an error as soon as its site has missed two heartbeats, deletes a reply whose contents pause
for three minutes, hands out a reply before its contents are there, and delivers each order once, so that a SuperNode that
starts again never gets what the one before it had. Upstream: flower#4968 (errors for sites that are offline), #7602 (limits of
a push), and the open #7244 (delivery that survives a crash).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

HEARTBEAT = 15
"""The seconds after which a SuperNode must have given a sign of life, twice in a row; with Flower's 30, a crash shows later."""
BEATS = 2
"""The heartbeats without which Flower calls a site offline."""
_KIND = "train"
_FOR_EVER = 10 * 365 * 24 * 3600
"""The seconds for which a reply may pause on its way; the silence of its site ends it earlier."""


def kind_of(patience: float) -> str:
    """Return the type of a message that allows its site a silence.

    Args:
        patience: the seconds without a sign of life after which the site has failed, >= 0.
    """
    return f"{_KIND}.silence_{max(0, round(patience) - BEATS * HEARTBEAT)}"


def patience_of(kind: str) -> float:
    """Return the seconds for which the type of a message lets a site be offline; 0 for a type of another origin."""
    begin, _, number = kind.partition(".silence_")
    return float(number) if begin == _KIND and number.isdecimal() else 0.0


@functools.cache
def keep_orders() -> None:
    """Change the SuperLink of this process, once."""
    from flwr.server.superlink.linkstate import sql_linkstate
    from flwr.supercore.corestate import sql_corestate

    links: Any = sql_linkstate
    core: Any = sql_corestate
    core.OBJECT_PUSH_SESSION_TTL_SECONDS = _FOR_EVER
    links.check_node_availability_for_in_message = waiting(links.check_node_availability_for_in_message)
    state: Any = links.SqlLinkState
    state.get_message_res = whole_ones(state.get_message_res)
    state.activate_node = delivering_again(state.activate_node)
    state.store_message_and_object_tree = replacing(state.store_message_and_object_tree)


def waiting(check: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return the check of sites that are offline with the patience of each message.

    Args:
        check: ``check_node_availability_for_in_message``.
    """

    def checked(
        *,
        inquired_in_message_ids: set[str],
        found_in_message_dict: Mapping[str, Any],
        node_id_to_online_until: Mapping[int, float],
        **more: Any,
    ) -> dict[str, Any]:
        failed: dict[str, Any] = {}
        for name in list(inquired_in_message_ids):
            patience, asked = patience_of(found_in_message_dict[name].metadata.message_type), {name}
            until = {node: end + patience for node, end in node_id_to_online_until.items()}
            failed |= check(
                inquired_in_message_ids=asked,
                found_in_message_dict=found_in_message_dict,
                node_id_to_online_until=until,
                **more,
            )
            if not asked:
                inquired_in_message_ids.discard(name)
        return failed

    return checked


def whole_ones(replies: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return only replies whose contents have arrived, so that no reader waits in the middle of one.

    Args:
        replies: ``SqlLinkState.get_message_res``.
    """

    def found(state: Any, message_ids: set[str], run_id: int) -> list[Any]:
        arriving = {
            one.order
            for one in _incomplete(state, message_ids)
            if one.online_until is None or one.online_until + patience_of(one.kind) >= time.time()
        }
        return replies(state, message_ids=set(message_ids) - arriving, run_id=run_id)

    return found


def delivering_again(activate: Callable[..., bool]) -> Callable[..., bool]:
    """Deliver what a SuperNode had not answered when it ended, as soon as the next one of its site starts.

    Args:
        activate: ``SqlLinkState.activate_node``.
    """

    def activated(state: Any, node_id: int, heartbeat_interval: float) -> bool:
        done = activate(state, node_id, heartbeat_interval)
        if done:
            _take_back(state, node_id)
        return done

    return activated


def _take_back(state: Any, node_id: int) -> None:
    """Let the orders of a site that have no whole reply wait for it once more."""
    from flwr.server.superlink.linkstate.sql_linkstate import MessageInsModel as Order
    from flwr.server.superlink.linkstate.sql_linkstate import MessageResModel as Answer
    from flwr.server.superlink.linkstate.sql_linkstate import uint64_to_int64
    from sqlalchemy import select, update

    with state.session() as session:
        mine = Order.dst_node_id == uint64_to_int64(node_id)
        delivered = set(session.scalars(select(Order.message_id).where(mine, Order.delivered_at != "")))
        answered = set(session.scalars(select(Answer.reply_to_message_id).where(Answer.reply_to_message_id.in_(delivered))))
        again = delivered - answered | {one.order for one in _incomplete(state, answered)}
        session.execute(update(Order).where(Order.message_id.in_(again)).values(delivered_at=""))


def replacing(store: Callable[..., tuple[bool, list[str]]]) -> Callable[..., tuple[bool, list[str]]]:
    """Let a reply take the place of an earlier one whose contents never arrived, and use those that did.

    Args:
        store: ``SqlLinkState.store_message_and_object_tree``.
    """

    def stored(state: Any, message: Any, object_tree: Any, session_id: str) -> tuple[bool, list[str]]:
        from flwr.server.superlink.linkstate.sql_linkstate import MessageResModel as Answer
        from sqlalchemy import delete

        with state.session() as session:
            asked, own = message.metadata.reply_to_message_id, message.metadata.message_id
            before = [one for one in _incomplete(state, {asked} if asked else ()) if one.reply != own]
            for one in before:
                session.execute(delete(Answer).where(Answer.message_id == one.reply))
            done = store(state, message, object_tree, session_id)
            for one in before:  # after the new one refers to the contents that both have
                state._cleanup_push_session(one.push, cleanup_messages=False)
                state.object_store.delete(one.reply)
        return done

    return stored


def _incomplete(state: Any, orders: Collection[str]) -> list[Any]:
    """Return those of the orders whose replies are on their way.

    Each has its id and type, the reply, the push of the reply, and until when its site is online, None if the site is gone.
    """
    from flwr.server.superlink.linkstate.sql_linkstate import MessageInsModel as Order
    from flwr.server.superlink.linkstate.sql_linkstate import MessageResModel as Answer
    from flwr.server.superlink.linkstate.sql_linkstate import NodeModel as Node
    from flwr.supercore.corestate.sql_corestate import ObjectPushSessionModel as Push
    from flwr.supercore.corestate.sql_corestate import ObjectPushSessionRootModel as Root
    from sqlalchemy import select

    if not orders:
        return []
    found = (
        select(
            Order.message_id.label("order"),
            Order.message_type.label("kind"),
            Answer.message_id.label("reply"),
            Push.session_id.label("push"),
            Node.online_until,
        )
        .join(Answer, Answer.reply_to_message_id == Order.message_id)
        .join(Root, Root.root_object_id == Answer.message_id)
        .join(Push, Push.session_id == Root.session_id)
        .outerjoin(Node, Node.node_id == Order.dst_node_id)
        .where(Order.message_id.in_(set(orders)), Push.pending_count > 0)
    )
    with state.session() as session:
        return list(session.execute(found))
