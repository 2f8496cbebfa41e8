"""How do the map server's messages reach its clients' sockets, and theirs the map server?

The service's end of `/link`: what the server sends to one client goes to its socket, what it sends
to a group goes once by UDP multicast and NATS and, framed once, to every socket tuned to the group.
No policy: a slow socket is passed over, because the machines repeat and heal what it missed, and is
cut off when it stays slow. Nobody is sent, or can ask for, a channel of another view class, and who
has left a class for good opens nothing of it any more: the others get another key.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from roamcast.channels.client.link_messages import (
    GROUP_FRAME_BYTES_MAX,
    LINK_PROTOCOL,
    Goodbye,
    Grouped,
    LinkWelcome,
    Tune,
    settings_bytes,
)
from roamcast.channels.reliable.messages import HealRequest, Join
from roamcast.channels.server.messages import (
    REASON_LENGTH_MAX,
    WELL_KNOWN,
    Receipt,
    Request,
    Subscribe,
)
from roamcast.channels.server.settings import MapSettings
from roamcast.errors import InputError, LimitError
from roamcast.identity.policy import subject_of
from roamcast.live.auth.admission import Bucket
from roamcast.live.config.settings import Limits
from roamcast.live.links.keys import ClassKeys
from roamcast.live.links.link import ALL_SCOPES, ClientLink, LinkSocket, lacking, scope_of
from roamcast.live.links.sockets import POLICY, TRY_AGAIN
from roamcast.live.service.reading import AT_ONCE_MAX, FilterReader
from roamcast.model.machine import Multicast, Received, Send
from roamcast.model.records import Drop, Record, Transmission
from roamcast.model.wire import Message, Reason, Unreadable, tag_of
from roamcast.transport.driver import Clock
from roamcast.transport.groups import PROBE, Groups, probe_frame

KEY_US_MAX: Final = 600_000_000
"""So long after somebody left, a view class gets another key: the token may have run out since."""

GROUPS_PER_LINK_MAX: Final = 4_096
UNREADABLE_MAX: Final = 8
"""A link that sends so many frames nobody can read is no client of ours."""

RETRY_US: Final = 1_000_000
SECOND: Final = 1_000_000

Give = Callable[[Received], None]
"""Takes a client's message to the map server."""

ClassOf = Callable[[str], str | None]
"""The view class whose channel a group is; None where there is no such channel."""


class Links:
    """All clients that run a map client of their own."""

    def __init__(
        self,
        *,
        server: str,
        epoch: int,
        settings: MapSettings,
        limits: Limits,
        secret: bytes,
        give: Give,
        class_of: ClassOf,
        clock: Clock,
        frame_of: Callable[[bytes], bytes],
        class_of_client: ClassOf = lambda _: None,
        groups: Sequence[Groups] = (),
        udp: str = "",
        nats: str = "",
        prefix: str = "",
        hosts: Sequence[str] = (),
        elsewhere: bool = False,
        probe_us: int = SECOND,
        note: Callable[[Record], None] | None = None,
        reader: FilterReader | None = None,
    ) -> None:
        """`secret` is drawn anew for every process; `groups` seal with keys derived from it.

        `class_of_client` gives the view class a client would be in if it came now. `udp`, `nats`
        and `prefix` are what clients are told to listen to; `frame_of` makes a
        WebSocket frame that is right for every client. `elsewhere`: whether the service is a node
        with neighbours. `note` takes what a journal shall
        hold; `reader` charges for filters.
        """
        self.limits = limits
        self.counts: Counter[str] = Counter()
        self.links: dict[str, ClientLink] = {}
        self._server = server
        self._epoch = epoch
        self._settings = settings_bytes(settings)
        self._keys = ClassKeys(secret)
        self._give = give
        self._class_of = class_of
        self._class_of_client = class_of_client
        self._clock = clock
        self._frame_of = frame_of
        self._groups = groups
        self._offer = (udp, nats, prefix)
        self._hosts = tuple(hosts)
        self._elsewhere = elsewhere
        self._probe_us = probe_us
        self._note = note
        self._reader = reader
        self._tuned: dict[str, dict[str, ClientLink]] = {}
        self._slow: dict[str, ClientLink] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Open UDP and NATS, and begin to probe them; call in the running loop."""
        for groups in self._groups:
            await groups.start()
        self._tick()

    async def close(self) -> None:
        """Say good-bye to everybody; clients come again at once."""
        if self._timer is not None:
            self._timer.cancel()
        for name in list(self.links):
            self.goodbye(name, "the service is going down: connect again", retry_us=1)
        for groups in self._groups:
            await groups.close()

    def connect(
        self,
        socket: LinkSocket,
        name: str,
        view_class: str,
        scopes: Collection[str] = ALL_SCOPES,
    ) -> ClientLink:
        """Welcome a client; another connection with the same name gives way."""
        if name in self.links:
            self.goodbye(name, "replaced: the same device connected again")
        elif len(self.links) >= self.limits.connections_max:
            raise LimitError(f"at most {self.limits.connections_max} links: come again later")
        now = self._clock()
        bucket = Bucket(self.limits.frames_per_s, self.limits.frames_burst, now)
        link = self.links[name] = ClientLink(
            self.received, socket, name, view_class, scopes, bucket
        )
        self._keys.enter(view_class)
        self._welcome(link)
        return link

    def _welcome(self, link: ClientLink) -> None:
        udp, nats, prefix = self._offer
        key, tag = self._keys.key(link.view_class), self._keys.tag(link.view_class)
        told = (self._settings, udp, nats, prefix, key, self._clock(), tag, self._hosts)
        welcome = LinkWelcome(link.name, self._server, self._epoch, *told, self._elsewhere)
        self._write(link, welcome)

    def _renew_keys(self, oldest: int) -> None:
        """Tell everybody of a class that somebody left before then another key.

        Who has left can open nothing more. Once a tick at most: many may leave together.
        """
        due = self._keys.renewed(oldest)
        if due:
            self.counts["keys renewed"] += len(due)
            for link in list(self.links.values()):
                if link.view_class in due:
                    self._welcome(link)

    def disconnected(self, link: ClientLink) -> None:
        """A connection is over; the map server notices the silence itself, as in AMS."""
        if self.links.get(link.name) is not link:
            return  # it was replaced, or we said good-bye
        del self.links[link.name]
        self._slow.pop(link.name, None)
        for group in link.tuned:
            self._untune(link, group)
        self._keys.leave(link.view_class, self._clock(), sealed=bool(self._groups))

    def goodbye(self, name: str, reason: str, *, retry_us: int = 0, code: int = POLICY) -> None:
        """Tell a client why its link ends and when to come again (0: not by itself), and end it."""
        link = self.links.get(name)
        if link is None:
            return
        self.disconnected(link)
        self.counts["goodbye: " + reason.partition(":")[0]] += 1
        said = Goodbye(reason[:REASON_LENGTH_MAX], retry_us)
        link.socket.write(self._frame_of(LINK_PROTOCOL.encode(said)))
        link.socket.close(code if not retry_us else TRY_AGAIN, reason)

    def expel(self, name: str, reason: str, *, retry_us: int = 0) -> None:
        """Say good-bye to a client who lost a right: its view class gets another key at once."""
        link = self.links.get(name)
        if link is not None:
            self.goodbye(name, reason, retry_us=retry_us)
            self._keys.hurry(link.view_class)

    def part_changed(self) -> None:
        """End the links of clients who may see something else now than when they came.

        They come again at once, with another view class and its key.
        """
        for name, link in list(self.links.items()):
            view_class = self._class_of_client(name)
            if view_class is not None and view_class != link.view_class:
                self.expel(name, "rules: what you may see has changed, connect again", retry_us=1)

    def received(self, link: ClientLink, data: bytes | str) -> None:
        """Take a client's frame: to the map server, or a wish to hear a group."""
        if self.links.get(link.name) is not link or not self._counted_in(link):
            return
        self.counts["received"] += 1
        if isinstance(data, str):
            self.goodbye(link.name, "text: this link speaks binary messages (roamcast.link.v1)")
            return
        if len(data) > self.limits.frame_bytes_max:
            most = self.limits.frame_bytes_max
            self.goodbye(link.name, f"too large: a message has at most {most} bytes")
            return
        message = LINK_PROTOCOL.decode(data)
        if isinstance(message, Unreadable):
            self._unreadable(link, message)
        else:
            self._take(link, message)

    def _counted_in(self, link: ClientLink) -> bool:
        """Hold a client to its rate: read it more slowly, and end what goes on regardless."""
        limits = self.limits
        wait_us = link.bucket.take(self._clock())
        if not wait_us:
            link.held = 0
            return True
        link.held += 1
        if link.held > limits.frames_burst:
            self.goodbye(
                link.name,
                f"too many messages: at most {limits.frames_per_s:g} a second",
                retry_us=RETRY_US,
            )
            return False
        self.counts["held"] += 1
        link.socket.hold(wait_us / SECOND)
        return True

    def _unreadable(self, link: ClientLink, problem: Unreadable) -> None:
        self.counts[f"unreadable: {problem.reason}"] += 1
        link.unreadable += 1
        if problem.reason is Reason.NEWER_VERSION:
            self.goodbye(link.name, f"newer: {problem.detail}; use an older client")
        elif link.unreadable >= UNREADABLE_MAX:
            self.goodbye(link.name, f"unreadable: {problem.reason} ({problem.detail})")

    def _take(self, link: ClientLink, message: Message) -> None:
        match message:
            case Tune(group, on):
                self._tune(link, group, on)
            case Request(operations=operations):
                lacks = [scope for scope in map(scope_of, operations) if scope not in link.scopes]
                if any(lacks):
                    self.goodbye(link.name, lacking(next(filter(None, lacks))))
                    return
                self._read_and_give(link, message)
            case Receipt():
                self._give(Received(link.name, message))
            case HealRequest(channel=channel) | Join(channel=channel):
                if self._may_hear(link, channel):
                    self._give(Received(link.name, message))
            case _:
                self.counts["not for a server"] += 1

    def _read_and_give(self, link: ClientLink, message: Request) -> None:
        """Charge for a request's filters, and read long ones before the machine needs them.

        What comes while they are read is lost: a client sends one request at a time, and repeats it
        until it is answered (0060).
        """
        reader = self._reader
        texts = [one.filter for one in message.operations if isinstance(one, Subscribe)]
        if reader is None or not texts:
            if link.reading is None:
                self._give(Received(link.name, message))
            return
        if link.reading is not None:
            self.counts["while reading"] += 1
            return
        subject = subject_of(link.name)
        wait_us = max(reader.owe(subject, text) for text in texts)
        if wait_us:
            self.counts["held"] += 1
            link.socket.hold(wait_us / SECOND)
        long = [text for text in texts if len(text) > AT_ONCE_MAX and reader.known(text) is None]
        if not long:
            self._give(Received(link.name, message))
            return
        link.reading = asyncio.get_running_loop().create_task(self._read(link, long, message))

    async def _read(self, link: ClientLink, texts: list[str], message: Request) -> None:
        assert self._reader is not None
        try:
            for text in texts:
                with suppress(InputError):  # the machine refuses it in the same words
                    await self._reader.read(text)
        finally:
            link.reading = None
        if self.links.get(link.name) is link:
            self._give(Received(link.name, message))

    def _may_hear(self, link: ClientLink, channel: str) -> bool:
        """Whether a channel is one of the client's own view class."""
        view_class = self._class_of(channel)
        if view_class is None:
            self.counts["no such channel"] += 1  # it was given back; the client notices silence
        elif view_class != link.view_class:
            self.counts["another class"] += 1
        return view_class == link.view_class

    def _tune(self, link: ClientLink, group: str, on: bool) -> None:
        if not on:
            if group in link.tuned:
                del link.tuned[group]
                self._untune(link, group)
        elif group != WELL_KNOWN and not self._may_hear(link, group):
            return
        elif len(link.tuned) >= GROUPS_PER_LINK_MAX:
            self.counts["too many groups"] += 1
        else:
            link.tuned[group] = None
            self._tuned.setdefault(group, {})[link.name] = link

    def _untune(self, link: ClientLink, group: str) -> None:
        members = self._tuned[group]
        del members[link.name]
        if not members:
            del self._tuned[group]

    def send(self, effect: Send) -> None:
        """Carry a message to one client; while its socket is slow it is lost, and repeated."""
        link = self.links.get(effect.to.name)
        if link is None:
            self.counts["no such link"] += 1
        else:
            self._write(link, effect.message)

    def multicast(self, effect: Multicast) -> None:
        """Carry a message once by each way, and to every socket tuned to its group.

        The journal has it once, with the sockets it went to: who hears UDP or NATS nobody knows.
        """
        group = effect.group
        frame = LINK_PROTOCOL.encode(effect.message)
        if len(frame) > GROUP_FRAME_BYTES_MAX:
            self.counts["too large"] += 1
            return
        sent = False
        if self._groups and group != WELL_KNOWN:
            key_class = self._keys.name(self._class_of(group))
            if key_class is not None:  # else nobody has a key
                for groups in self._groups:
                    groups.send(group, frame, key_class)
                    self.counts["to groups"] += 1
                    sent = True
        written = 0
        members = self._tuned.get(group)
        if members:
            framed = self._frame_of(LINK_PROTOCOL.encode(Grouped(group, frame)))
            for link in list(members.values()):
                written += self._write_framed(link, framed)
        if self._note is not None and (sent or written):
            self._note(Transmission(tag_of(type(effect.message)), len(frame), group, "", written))

    def _write(self, link: ClientLink, message: Message) -> None:
        frame = LINK_PROTOCOL.encode(message)
        written = self._write_framed(link, self._frame_of(frame))
        if self._note is not None:
            tag, size = tag_of(type(message)), len(frame)
            if written:
                self._note(Transmission(tag, size, "", link.name, 1))
            else:
                self._note(Drop("slow socket", tag, size, link.name))

    def _write_framed(self, link: ClientLink, framed: bytes) -> bool:
        """Write a frame, unless its socket is slow: what it misses is repeated, or healed."""
        waiting, limits = link.socket.waiting_bytes, self.limits
        most = limits.socket_high_bytes if link.slow_since_us is None else limits.socket_low_bytes
        if waiting <= most:
            link.slow_since_us = None
            link.socket.write(framed)
            self.counts["written"] += 1
            return True
        self.counts["passed over"] += 1
        if link.slow_since_us is None:
            link.slow_since_us = self._clock()
            self._slow[link.name] = link
        if waiting > limits.socket_bytes_max:
            self._too_slow(link)
        return False

    def _too_slow(self, link: ClientLink) -> None:
        self.goodbye(link.name, "too slow: connect again when you can", retry_us=RETRY_US)

    def _tick(self) -> None:
        """Probe UDP and NATS for every view class with links; cut off who stays slow."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._probe_us / SECOND, self._tick)
        self.part_changed()
        frame = probe_frame(self._probe_us)
        now = self._clock()
        self._renew_keys(now - KEY_US_MAX)
        for groups in self._groups:
            for key_class in self._keys.probed():
                groups.send(PROBE, frame, key_class)
        oldest = now - int(self.limits.slow_s_max * SECOND)
        for name, link in list(self._slow.items()):
            if link.slow_since_us is None or link.socket.waiting_bytes <= (
                self.limits.socket_low_bytes
            ):
                link.slow_since_us = None
                del self._slow[name]
            elif link.slow_since_us < oldest:
                self._too_slow(link)
