"""One session of a link: payloads both ways, once and in order, with a window and a queue.

Each direction is a reliable channel with a group of two (`channels/reliable/`). Receipts ride on
every frame, so what is under way never exceeds the sender's buffer: everything missing can be
healed, and a snapshot is never needed. A session is named by both sides' nonces; frames of any
other are not its own, however late they come.
"""

from collections import deque
from collections.abc import Iterable

from roamcast.channels.reliable.messages import Data, HealRequest, HealResponse, Synchronisation
from roamcast.channels.reliable.receiver import ChannelReceiver, Delivered
from roamcast.channels.reliable.sender import ChannelSender
from roamcast.model.addresses import Neighbour
from roamcast.model.machine import Draw, Effect, Multicast, Received, Send, earliest
from roamcast.overlay.links.messages import LinkFrame
from roamcast.overlay.links.settings import LinkSettings

INCARNATION = 1
"""A session has one life; the next session has another name."""


class LinkSession:
    """Both channels of a link that is up, what waits for it, and what it has delivered."""

    def __init__(
        self,
        session: int,
        nonces: tuple[bytes, bytes],
        address: str,
        *,
        names: tuple[str, str],
        now: int,
        settings: LinkSettings,
        draw: Draw,
    ) -> None:
        """`nonces` and `names`: ours and the neighbour's."""
        self.session = session
        self.nonce, self.echo = nonces
        self.address = address
        self.since = now
        self.received_at = now
        self.refused = ""
        """What the other side said instead of taking up the session; nothing proves it."""
        self.progress_at = now
        self.full = False
        self._settings = settings
        self._sender = ChannelSender(
            names[0], incarnation=INCARNATION, now=now, settings=settings.channel
        )
        self._receiver = ChannelReceiver(
            names[1],
            source=names[1],
            now=now,
            settings=settings.channel,
            draw=draw,
            start=(INCARNATION, 1),
        )
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._under_way: deque[int] = deque()
        """Sizes of what is sent and not acknowledged."""
        self._under_way_bytes = 0
        self._acknowledged = 0
        self._receipt_at: int | None = None

    @property
    def idle(self) -> bool:
        """Whether everything given to it has been acknowledged."""
        return not self._waiting and not self._under_way

    @property
    def queue(self) -> tuple[int, int]:
        """Messages and bytes that wait for the window."""
        return len(self._waiting), self._waiting_bytes

    @property
    def under_way(self) -> int:
        """Messages that are sent and not acknowledged."""
        return len(self._under_way)

    def send(self, payload: bytes, now: int) -> list[Effect]:
        """Take the next payload; it waits while the window is closed."""
        self._waiting.append(payload)
        self._waiting_bytes += len(payload)
        return self._pump(now)

    def take(self, frame: LinkFrame, now: int) -> tuple[list[bytes], list[Effect]]:
        """Take a frame of this session; give the payloads that are next in turn."""
        self.received_at = now
        self.refused = ""
        effects = self._acknowledge(frame.acknowledged, now)
        part = frame.part
        if part is None:
            return [], effects
        received = Received("", part)
        if isinstance(part, HealRequest):
            return [], effects + self._wrapped(self._sender.receive(received, now))
        if part.incarnation != INCARNATION:  # the receiver would wait for a snapshot of it
            return [], effects
        out = self._receiver.receive(received, now)
        payloads = [effect.payload for effect in out if isinstance(effect, Delivered)]
        if isinstance(part, Synchronisation):  # it also asks whether the last receipt was lost
            effects += self._receipt(now)
        elif isinstance(part, Data | HealResponse) and self._receipt_at is None:
            self._receipt_at = now + self._settings.acknowledge_us
        return payloads, effects

    def advance(self, now: int) -> list[Effect]:
        """Heal, synchronise, and send a receipt that found nothing to travel with."""
        effects = self._wrapped(self._sender.advance(now))
        effects += self._wrapped(self._receiver.advance(now))
        if self._receipt_at is not None and now >= self._receipt_at:
            effects += self._receipt(now)
        return effects

    def deadline(self) -> int | None:
        """When a channel or a receipt is due."""
        return earliest(self._sender.deadline(), self._receiver.deadline(), self._receipt_at)

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """How much is held of what, and the bound of each."""
        settings = self._settings
        held = {**self._sender.occupancy(), **self._receiver.occupancy()}
        return {
            **held,
            "queue messages": (len(self._waiting), settings.queue_messages_max),
            "queue bytes": (self._waiting_bytes, settings.queue_bytes_max),
            "under way": (len(self._under_way), settings.channel.buffer_messages_max),
        }

    def _pump(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        channel = self._settings.channel
        while self._waiting and len(self._under_way) < channel.buffer_messages_max:
            size = len(self._waiting[0])
            if self._under_way and self._under_way_bytes + size > channel.buffer_bytes_max:
                break
            if not self._under_way:
                self.progress_at = now
            payload = self._waiting.popleft()
            self._waiting_bytes -= size
            self._under_way.append(size)
            self._under_way_bytes += size
            effects.append(self._sender.publish(payload, now))
        return self._wrapped(effects)

    def _acknowledge(self, upto: int, now: int) -> list[Effect]:
        """Open the window; a receipt for what was never sent counts for what was."""
        upto = min(upto, self._sender.last)
        if upto <= self._acknowledged:
            return []
        for _ in range(upto - self._acknowledged):
            self._under_way_bytes -= self._under_way.popleft()
        self._acknowledged = upto
        self.progress_at = now
        return self._pump(now)

    def _receipt(self, now: int) -> list[Effect]:
        del now
        self._receipt_at = None
        frame = LinkFrame(self.session, self._receiver.expected - 1)
        return [Send(Neighbour(self.address), frame)]

    def _wrapped(self, effects: Iterable[Effect]) -> list[Effect]:
        """Put what a channel sends into frames; each carries the receipt."""
        out: list[Effect] = []
        for effect in effects:
            assert isinstance(effect, Send | Multicast), f"a link carries no {effect!r}"
            part = effect.message
            assert isinstance(part, Data | HealResponse | Synchronisation | HealRequest), part
            self._receipt_at = None
            frame = LinkFrame(self.session, self._receiver.expected - 1, part)
            out.append(Send(Neighbour(self.address), frame))
        return out
