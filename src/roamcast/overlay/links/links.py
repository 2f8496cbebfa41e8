"""Links to neighbours: who is there, proved by key, and frames to them (OVERLAY, links).

Two nodes greet each other until each has seen the other sign its nonce; both may begin. A nonce
serves one session, so neither a late greeting nor a recorded one brings an old session back. Of
several hosts of one node the newest epoch wins. A neighbour that breaks the protocol, floods or
stalls is cut off with a reason, and is answered again only after a delay that grows.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, Final

import msgspec

from roamcast.channels.failover.epochs import SEATS_MAX, epoch_at, seat_of
from roamcast.channels.reliable.messages import PAYLOAD_BYTES_MAX
from roamcast.errors import LimitError
from roamcast.model.addresses import Neighbour
from roamcast.model.machine import (
    Draw,
    Effect,
    Entry,
    Received,
    Send,
    Store,
    Stored,
    StoreFailed,
    step,
)
from roamcast.model.parts import Occupancy, Part, Timers
from roamcast.model.records import OverlayStep
from roamcast.model.wire import Registry, Unreadable
from roamcast.overlay.events import (
    AddNeighbour,
    CameByLink,
    CutLink,
    Garbled,
    HangUp,
    NeighbourDown,
    NeighbourFound,
    NeighbourFull,
    NeighbourGone,
    NeighbourReady,
    NeighbourUp,
    OverlayOpened,
    RemoveNeighbour,
    SendOnLink,
    WayLost,
)
from roamcast.overlay.links.messages import (
    NONCE_BYTES,
    PROTOCOL_VERSION,
    REASON_LENGTH_MAX,
    Greeting,
    LinkFrame,
    LinkRefusal,
    protocol_problem,
)
from roamcast.overlay.links.neighbour import (
    ANSWERS_BURST,
    LINKS_TABLE,
    LinkView,
    NeighbourEvent,
    NeighbourLink,
    NeighbourState,
)
from roamcast.overlay.links.proof import Sign, Verify, signed_text
from roamcast.overlay.links.session import LinkSession
from roamcast.overlay.links.settings import LinkSettings, NeighbourSettings

PREFIX: Final = "overlay/link/"
EPOCH_KEY: Final = PREFIX + "epoch"
WRONG_KEY: Final = "wrong key"
UNKNOWN_NODE: Final = "unknown node"
SKEWED_CLOCK: Final = "skewed clock"
OLDER_EPOCH: Final = "older epoch"


Handler = Callable[[Any, int], list[Effect]]


class NodeLinks(Part):
    """All neighbours of this node."""

    part: ClassVar[str] = "links"
    messages: ClassVar = (Greeting, LinkFrame, LinkRefusal)
    inputs: ClassVar = (
        AddNeighbour, RemoveNeighbour, NeighbourFound, NeighbourGone, WayLost, Garbled, SendOnLink,
        CutLink,
    )  # fmt: skip
    prefix: ClassVar[str] = PREFIX

    def __init__(
        self,
        node: str,
        *,
        epoch: int,
        now: int,
        settings: LinkSettings,
        neighbours: Mapping[str, NeighbourSettings],
        known: Mapping[str, bytes],
        carried: Registry,
        draw: Draw,
        nonce: Callable[[], bytes],
        sign: Sign,
        verify: Verify,
    ) -> None:
        """`known`: nodes that may call unasked, and their keys; `carried`: what links carry.

        `nonce` draws NONCE_BYTES bytes.
        """
        self.node = node
        self.epoch = epoch
        self.opened = False
        self._settings = settings
        self._known = known
        self._carried = carried
        self._draw = draw
        self._nonce = nonce
        self._sign = sign
        self._verify = verify
        self._neighbours: dict[str, NeighbourLink] = {}
        self._by_address: dict[str, NeighbourLink] = {}
        """Addresses of sessions that are up."""
        self._timers: Timers[str] = Timers()
        self._write_at: int | None = now
        self._by_type: dict[type, Handler] = {
            AddNeighbour: self._add,
            RemoveNeighbour: self._remove,
            NeighbourFound: self._found,
            NeighbourGone: self._gone,
            WayLost: self._way_lost,
            Garbled: self._garbled,
            SendOnLink: self._send,
            CutLink: lambda given, now: self._cut_node(given.node, given.reason, now),
            Stored: self._open,
            StoreFailed: self._write_later,
        }
        self._by_message: dict[type, Callable[[str, Any, int], list[Effect]]] = {
            Greeting: self._greeted,
            LinkFrame: self._frame,
            LinkRefusal: self._refused,
        }
        for name, each in neighbours.items():
            self._add(AddNeighbour(name, each), now)

    # --- the part

    def restore(self, stored: Mapping[str, bytes], now: int) -> Sequence[Effect]:
        """Begin an epoch newer than the last one on disk: clocks may have been set back."""
        del now
        last = int.from_bytes(stored.get(EPOCH_KEY, b""), "big")
        if self.epoch <= last:
            self.epoch = epoch_at(self.epoch // SEATS_MAX, seat_of(self.epoch), last)
        return ()

    def adopt(self, entries: Sequence[Entry], now: int) -> Sequence[Effect]:
        """An epoch of another host of this node; it has ended, ours goes on."""
        del entries, now
        return ()

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take a message, an answer of the disk, or what a part wants."""
        if isinstance(given, Received):
            if not self.opened:
                return ()
            return self._by_message[type(given.message)](given.sender, given.message, now)
        return self._by_type[type(given)](given, now)

    def advance(self, now: int) -> Sequence[Effect]:
        """Write the epoch first; then greet, heal, and notice silence."""
        effects: list[Effect] = []
        if self._write_at is not None and now >= self._write_at:
            self._write_at = None
            effects.append(Store(1, ((EPOCH_KEY, self.epoch.to_bytes(8, "big")),)))
        if self.opened:
            for node in self._timers.due(now):
                effects += self._due(self._neighbours[node], now)
        return effects

    def deadline(self) -> int | None:
        """When the next neighbour is due; before it is open, only the disk matters."""
        return self._timers.deadline() if self.opened else self._write_at

    def occupancy(self) -> Occupancy:
        """How many neighbours there are, and the fullest of each bound of their links."""
        held: Occupancy = {"neighbours": (len(self._neighbours), self._settings.neighbours_max)}
        for each in self._neighbours.values():
            if each.session is not None:
                for what, (count, bound) in each.session.occupancy().items():
                    held[what] = max(held.get(what, (0, bound)), (count, bound))
        return held

    # --- reads

    @property
    def neighbours(self) -> list[str]:
        """Name the neighbours, linked or not."""
        return list(self._neighbours)

    def up(self) -> list[str]:
        """Name the neighbours that are linked."""
        return [name for name, each in self._neighbours.items() if each.session is not None]

    def idle(self) -> bool:
        """Whether everything sent on links that are up has been acknowledged."""
        sessions = (each.session for each in self._neighbours.values())
        return all(session.idle for session in sessions if session is not None)

    def view(self) -> list[LinkView]:
        """Describe every neighbour."""
        return [each.view() for each in self._neighbours.values()]

    # --- opening, and who may be a neighbour

    def _open(self, given: Stored, now: int) -> list[Effect]:
        del given
        self.opened = True
        for node, each in self._neighbours.items():
            if each.settings.addresses:
                self._timers.set(node, now)
        return [OverlayOpened(self.epoch), OverlayStep("links", "open", number=self.epoch)]

    def _write_later(self, given: StoreFailed, now: int) -> list[Effect]:
        del given
        self._write_at = now + self._settings.retry_us
        return []

    def _add(self, given: AddNeighbour, now: int) -> list[Effect]:
        if given.node == self.node or given.node in self._neighbours:
            known = self._neighbours.get(given.node)
            if known is not None:
                known.settings, known.found = given.settings, False
            return []
        if len(self._neighbours) >= self._settings.neighbours_max:
            raise LimitError(f"a node has at most {self._settings.neighbours_max} neighbours")
        self._neighbours[given.node] = NeighbourLink(given.node, given.settings)
        if given.settings.addresses:
            self._timers.set(given.node, now)
        return []

    def _found(self, given: NeighbourFound, now: int) -> list[Effect]:
        """Take a neighbour that a search found; one that is configured or has no room is not."""
        known = self._neighbours.get(given.node)
        if known is not None:
            if given.settings.addresses and not known.settings.addresses:  # awaited until now
                known.settings = given.settings
                if known.state is NeighbourState.DOWN:
                    self._timers.set(given.node, now)
            return []
        if len(self._neighbours) >= self._settings.neighbours_max:
            return [OverlayStep("links", "refused", given.node, reason="too many neighbours")]
        self._add(AddNeighbour(given.node, given.settings), now)
        self._neighbours[given.node].found = True
        return []

    def _caller(self, greeting: Greeting, now: int) -> NeighbourLink | None:
        """Give the neighbour that greets us; one that is known may call unasked."""
        each = self._neighbours.get(greeting.node)
        key = self._known.get(greeting.node)
        room = len(self._neighbours) < self._settings.neighbours_max
        if each is None and key is not None and room and greeting.to == self.node:
            self._found(NeighbourFound(greeting.node, NeighbourSettings(key)), now)
            each = self._neighbours.get(greeting.node)
        return each

    def _gone(self, given: NeighbourGone, now: int) -> list[Effect]:
        """Let a neighbour go that nobody configured, unless it must be remembered as unruly."""
        each = self._neighbours.get(given.node)
        if each is None or not each.found or now < each.shunned_until:
            return []
        return self._remove(RemoveNeighbour(given.node), now)

    def _remove(self, given: RemoveNeighbour, now: int) -> list[Effect]:
        each = self._neighbours.get(given.node)
        if each is None:
            return []
        effects = self._end(each, "removed", now) if each.session else []
        del self._neighbours[given.node]
        self._timers.cancel(given.node)
        return effects

    # --- greeting

    def _due(self, each: NeighbourLink, now: int) -> list[Effect]:
        """Do what time demands of one neighbour."""
        if each.state is NeighbourState.UP:
            return self._watch(each, now)
        if each.state is NeighbourState.DOWN:
            if now < each.shunned_until:
                self._timers.set(each.node, each.shunned_until)
                return []
            self._attempt(each, NeighbourEvent.DUE, now)
        if now >= each.until:
            return self._give_up(each, each.reason or "no answer", now)
        each.answers = min(ANSWERS_BURST, each.answers + 1)
        self._timers.set(each.node, min(now + self._settings.greet_us, each.until))
        address = each.address
        addresses = each.settings.addresses
        if not each.echo and addresses:  # nobody has answered: try the next of its hosts
            address = addresses[each.attempts % len(addresses)]
            each.attempts += 1
        return [self._greeting(each, address, now)] if address else []

    def _attempt(self, each: NeighbourLink, event: NeighbourEvent, now: int) -> None:
        each.state = step(LINKS_TABLE, each.state, event)
        each.nonce = each.nonce or self._fresh()
        each.until = now + self._settings.patience_us
        self._timers.set(each.node, now + self._settings.greet_us)

    def _fresh(self) -> bytes:
        nonce = self._nonce()
        assert len(nonce) == NONCE_BYTES
        return nonce

    def _greeting(self, each: NeighbourLink, address: str, now: int) -> Effect:
        """Greet: in the words of the session that is up, unless the neighbour seeks another."""
        session = each.session
        current = session is not None and each.echo in (b"", session.echo)
        nonce, echo = (each.nonce, each.echo)
        if current and session is not None:
            nonce, echo = session.nonce, session.echo
        said = Greeting(
            self.node,
            each.node,
            PROTOCOL_VERSION,
            self.epoch,
            max(now, 0),
            nonce,
            echo,
            session is not None,
        )
        if echo:
            said = msgspec.structs.replace(said, proof=self._sign(signed_text(said)))
        return Send(Neighbour(address), said)

    def _greeted(self, address: str, greeting: Greeting, now: int) -> list[Effect]:
        each = self._caller(greeting, now)
        if each is not None and now < each.shunned_until:
            return []
        answer = greeting.echo and each is not None and greeting.echo == each.nonce
        reason = self._objection(each, greeting, proved=bool(answer), now=now)
        if reason or each is None:
            return self._refuse(each, address, reason, proved=bool(answer), now=now)
        session = each.session
        if session is not None and greeting.nonce == session.echo:
            if greeting.up:
                return []
            each.echo = session.echo
            return self._answer(each, address, now)
        if answer:
            return self._prove(each, address, greeting, now)
        if session is not None and greeting.up:
            return []  # it was not meant for the session that we have, and wants no other
        each.echo, each.address = greeting.nonce, address
        each.nonce = each.nonce or self._fresh()
        if each.state is NeighbourState.DOWN:
            self._attempt(each, NeighbourEvent.GREETED, now)
        return self._answer(each, address, now)

    def _answer(self, each: NeighbourLink, address: str, now: int) -> list[Effect]:
        """Answer a greeting, a bounded number of times for each interval of ours."""
        passed = (now - each.answers_at) / self._settings.greet_us
        each.answers = min(float(ANSWERS_BURST), each.answers + passed)
        each.answers_at = now
        if each.answers < 1:
            return []
        each.answers -= 1
        return [self._greeting(each, address, now)]

    def _objection(
        self, each: NeighbourLink | None, greeting: Greeting, *, proved: bool, now: int
    ) -> str:
        """Say why there will be no link, "" if there may be one."""
        if each is None or greeting.to != self.node:
            return UNKNOWN_NODE
        if mismatch := protocol_problem(greeting):
            return mismatch
        if abs(greeting.clock_us - now) > self._settings.skew_us_max:
            return SKEWED_CLOCK
        if greeting.epoch < each.epoch:
            return OLDER_EPOCH
        if len(greeting.nonce) != NONCE_BYTES:
            return "garbage: a nonce of another length"
        text = signed_text(greeting)
        if proved and not self._verify(each.settings.key, greeting.proof, text):
            return WRONG_KEY
        return ""

    def _refuse(
        self, each: NeighbourLink | None, address: str, reason: str, *, proved: bool, now: int
    ) -> list[Effect]:
        """Refuse by name. Without a proof it says nothing about the neighbour itself."""
        effects: list[Effect] = [
            OverlayStep("links", "refused", each.node if each else "", reason=reason),
            Send(Neighbour(address), LinkRefusal(self.node, reason)),
        ]
        if each is not None and proved and each.state is NeighbourState.GREETING:
            return [*effects, *self._give_up(each, reason, now)]
        if each is not None and each.session is None:
            each.reason = reason
        return effects

    def _refused(self, address: str, refusal: LinkRefusal, now: int) -> list[Effect]:
        """Note that we were refused: nothing proves it, so only a hopeless attempt ends."""
        each = self._neighbours.get(refusal.node)
        if each is not None and each.session is not None and each.session.address == address:
            # It proved itself and does not take our proof. The link ends by silence as any other,
            # for anybody may say this; but people are told what was said (see `_end`).
            each.session.refused = f"refused: {refusal.reason}"
        if each is None or each.state is not NeighbourState.GREETING:
            return []
        if address not in (each.address, *each.settings.addresses):
            return []
        return self._give_up(each, f"refused: {refusal.reason}", now)

    def _give_up(self, each: NeighbourLink, reason: str, now: int) -> list[Effect]:
        each.state = step(LINKS_TABLE, each.state, NeighbourEvent.GAVE_UP)
        each.reason = reason
        self._rest(each, now)
        if each.found and not each.settings.addresses:
            del self._neighbours[each.node]  # it called, and that was all
        return [OverlayStep("links", "gave up", each.node, reason=reason)]

    def _rest(self, each: NeighbourLink, now: int) -> int:
        """Wait before the next attempt, twice as long after every failure."""
        settings = self._settings
        delay = min(settings.retry_us << min(each.failures, 20), settings.retry_us_max)
        each.failures += 1
        each.nonce = each.echo = b""
        again = now + delay // 2 + round(delay * self._draw() / 2)
        if each.settings.addresses:
            self._timers.set(each.node, max(again, now + 1))
        else:
            self._timers.cancel(each.node)
        return again

    def _prove(
        self, each: NeighbourLink, address: str, greeting: Greeting, now: int
    ) -> list[Effect]:
        """The neighbour is who it says, and speaks now: begin a session."""
        effects: list[Effect] = []
        if each.session is not None:
            reason = "newer epoch" if greeting.epoch > each.epoch else "the neighbour began anew"
            effects += self._over(each, reason)
        other = self._by_address.get(address)
        if other is not None:
            effects += self._end(other, "another node speaks on its connection", now)
        each.state = step(LINKS_TABLE, each.state, NeighbourEvent.PROVED)
        each.epoch, each.offset_us = greeting.epoch, greeting.clock_us - now
        each.reason = ""
        each.session = LinkSession(
            session_of((self.node, each.nonce), (each.node, greeting.nonce)),
            (each.nonce, greeting.nonce),
            address,
            names=(self.node, each.node),
            now=now,
            settings=self._settings,
            draw=self._draw,
        )
        self._by_address[address] = each
        each.nonce = each.echo = b""
        each.frames, each.frames_at = float(self._settings.frames_per_s_max), now
        effects.append(self._greeting(each, address, now))
        self._arm(each)
        return [
            *effects,
            OverlayStep("links", "up", each.node, each.epoch),
            NeighbourUp(each.node, each.epoch, each.offset_us),
        ]

    # --- a link that is up

    def _frame(self, address: str, frame: LinkFrame, now: int) -> list[Effect]:
        each = self._by_address.get(address)
        if each is None or each.session is None:
            return []
        session = each.session
        if not self._has_room(each, now):
            return self._cut(each, "flood: more frames than the limit", now)
        if frame.session != session.session:
            # It lives in a session of its own: show it ours, and how to come into it.
            each.echo = b""
            return self._answer(each, address, now)
        payloads, effects = session.take(frame, now)
        for payload in payloads:
            message = self._carried.decode(payload)
            if isinstance(message, Unreadable):
                return [*effects, *self._cut(each, f"garbage: {message.reason}", now)]
            effects.append(CameByLink(each.node, message))
        effects += self._relieved(each)
        self._arm(each)
        return effects

    def _has_room(self, each: NeighbourLink, now: int) -> bool:
        rate = self._settings.frames_per_s_max
        each.frames = min(rate, each.frames + (now - each.frames_at) * rate / 1_000_000) - 1
        each.frames_at = now
        return each.frames >= 0

    def _send(self, given: SendOnLink, now: int) -> list[Effect]:
        each = self._neighbours.get(given.node)
        if each is None or each.session is None:
            return []  # its user learns, or has learnt, of NeighbourDown
        session, settings = each.session, self._settings
        payload = self._carried.encode(given.message)
        assert len(payload) <= PAYLOAD_BYTES_MAX, f"{type(given.message).__name__} needs pages"
        messages, size = session.queue
        bounds = settings.queue_messages_max, settings.queue_bytes_max
        if messages >= bounds[0] or size + len(payload) > bounds[1]:
            return self._cut(each, "queue full", now)
        effects = session.send(payload, now)
        messages, size = session.queue
        if not session.full and (messages > bounds[0] // 2 or size > bounds[1] // 2):
            session.full = True
            effects.append(NeighbourFull(each.node))
        self._arm(each)
        return effects

    def _relieved(self, each: NeighbourLink) -> list[Effect]:
        """Let parts go on once a full link has drained to a quarter."""
        session, settings = each.session, self._settings
        if session is None or not session.full:
            return []
        messages, size = session.queue
        if messages > settings.queue_messages_max // 4 or size > settings.queue_bytes_max // 4:
            return []
        session.full = False
        return [NeighbourReady(each.node)]

    def _watch(self, each: NeighbourLink, now: int) -> list[Effect]:
        """Notice silence and stalls, forget old failures, and let the channels do what is due."""
        session, settings = each.session, self._settings
        assert session is not None
        if now >= session.received_at + settings.silent_us:
            return self._end(each, "silent", now)
        if session.under_way and now >= session.progress_at + settings.stalled_us:
            return self._cut(each, "stalled", now)
        if now >= session.since + settings.steady_us:
            each.failures = 0
        effects = session.advance(now)
        self._arm(each)
        return effects

    def _arm(self, each: NeighbourLink) -> None:
        session, settings = each.session, self._settings
        assert session is not None
        due = session.received_at + settings.silent_us
        if session.under_way:
            due = min(due, session.progress_at + settings.stalled_us)
        channel = session.deadline()
        self._timers.set(each.node, due if channel is None else min(due, channel))

    def _way_lost(self, given: WayLost, now: int) -> list[Effect]:
        each = self._by_address.get(given.address)
        return [] if each is None else self._end(each, f"connection lost: {given.reason}", now)

    def _garbled(self, given: Garbled, now: int) -> list[Effect]:
        each = self._by_address.get(given.address)
        if each is not None:
            return self._cut(each, f"garbage: {given.reason}", now)
        return [HangUp(given.address, given.reason)]

    def _cut_node(self, node: str, reason: str, now: int) -> list[Effect]:
        each = self._neighbours.get(node)
        return [] if each is None or each.session is None else self._cut(each, reason, now)

    def _cut(self, each: NeighbourLink, reason: str, now: int) -> list[Effect]:
        """End a link whose neighbour misbehaves; it is not listened to for a while."""
        assert each.session is not None
        address = each.session.address
        effects = self._end(each, reason, now)
        settings = self._settings
        delay = min(settings.retry_us << min(each.failures, 20), settings.retry_us_max)
        each.shunned_until = now + delay
        return [*effects, HangUp(address, reason[:REASON_LENGTH_MAX])]

    def _end(self, each: NeighbourLink, reason: str, now: int) -> list[Effect]:
        each.state = step(LINKS_TABLE, each.state, NeighbourEvent.ENDED)
        if each.session is not None and each.session.refused:
            reason = f"{each.session.refused} ({reason})"
        effects = self._over(each, reason)
        each.reason = reason
        self._rest(each, now)
        return effects

    def _over(self, each: NeighbourLink, reason: str) -> list[Effect]:
        assert each.session is not None
        self._by_address.pop(each.session.address, None)
        each.session = None
        return [
            OverlayStep("links", "down", each.node, reason=reason),
            NeighbourDown(each.node, reason),
        ]


def session_of(first: tuple[str, bytes], other: tuple[str, bytes]) -> int:
    """Name a session by both nodes and nonces; both sides find the same name."""
    text = msgspec.msgpack.encode(sorted((first, other)))
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 1
