"""Does a reliable channel end with exactly the sequence, or say that it does not? (AMS 6, 12.)

One server publishes to listeners, of whom some come late and some were told where to start. The
server's incarnation is on disk before it speaks; its state may fall back at a crash, which is why a
new incarnation always begins with a snapshot for those who were there before.
"""

import hashlib
from collections.abc import Sequence
from typing import ClassVar, Final

from roamcast.channels.reliable.messages import PROTOCOL
from roamcast.channels.reliable.receiver import ChannelReceiver, Delivered, Replaced, Stale
from roamcast.channels.reliable.sender import ChannelSender, SnapshotTaken, SnapshotWanted, Transmit
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.model.machine import Effect, Input, Listen, Received, Store, Stored, StoreFailed
from roamcast.model.records import ChannelStep, Delivery
from roamcast.sim.checkers import SequenceOrSnapshot, Violation, check_bounds
from roamcast.sim.host import Boot, Factory, Host
from roamcast.sim.kernel import Action
from roamcast.sim.workload import Sizes, Workload
from roamcast.sim.world import World

CHANNEL: Final = "updates"
SERVER: Final = "server"
WATCH_US: Final = 50_000
WRITE_AGAIN_US: Final = 100_000
STORE_EVERY: Final = 8

START: Final = bytes(16)
"""The state before the first message; each message leads from one state to the next."""


class Say(Input, frozen=True, gc=False):
    """The server's user has something to publish."""

    payload: bytes


class ShownToUser(Effect, frozen=True, gc=False):
    """The server published it under this number."""

    incarnation: int
    sequence: int
    payload: bytes


def after(state: bytes, payload: bytes) -> bytes:
    """Give the state that a message leads to: equal states, equal histories."""
    return hashlib.blake2b(state + payload, digest_size=len(START)).digest()


class ServerHost:
    """A channel's sender with a state of its own and a disk."""

    def __init__(self, boot: Boot, settings: ChannelSettings) -> None:
        stored = boot.stored
        self.incarnation = int.from_bytes(stored.get("incarnation", b""), "big") + 1
        self.state = stored.get("state", START)
        self.sender: ChannelSender | None = None
        self._settings = settings
        self._write_at: int | None = boot.now
        """When to write the incarnation down; None once it was asked for."""
        self._token = 0

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Publish, answer receivers, or open once the incarnation is on disk."""
        if isinstance(given, StoreFailed):
            if self.sender is None:
                self._write_at = now + WRITE_AGAIN_US
            return ()
        if isinstance(given, Stored):
            if self.sender is None:
                self.sender = ChannelSender(
                    CHANNEL,
                    incarnation=self.incarnation,
                    now=now,
                    settings=self._settings,
                    starts_empty=self.state == START,
                )
            return ()
        if self.sender is None:
            return ()  # not open yet: nobody was promised anything
        if isinstance(given, Say):
            return self._say(self.sender, given.payload, now)
        return self._answer(self.sender, self.sender.receive(given, now), now)

    def advance(self, now: int) -> Sequence[Effect]:
        """Write the incarnation down first; after that, the sender's timers."""
        if self._write_at is not None and now >= self._write_at:
            self._write_at = None
            return (Store(0, (("incarnation", self.incarnation.to_bytes(8, "big")),)),)
        if self.sender is None:
            return ()
        return self._answer(self.sender, self.sender.advance(now), now)

    def deadline(self) -> int | None:
        """The sender's deadline once it is open."""
        return self._write_at if self.sender is None else self.sender.deadline()

    def _say(self, sender: ChannelSender, payload: bytes, now: int) -> Sequence[Effect]:
        effects = [*sender.receive(Transmit(payload), now)]
        self.state = after(self.state, payload)
        effects.append(ShownToUser(sender.incarnation, sender.last, payload))
        if sender.last % STORE_EVERY == 0:
            self._token += 1
            effects.append(Store(self._token, (("state", self.state),)))
        return effects

    def _answer(
        self, sender: ChannelSender, effects: Sequence[Effect], now: int
    ) -> Sequence[Effect]:
        if not any(isinstance(effect, SnapshotWanted) for effect in effects):
            return effects
        rest = [effect for effect in effects if not isinstance(effect, SnapshotWanted)]
        return [*rest, *sender.receive(SnapshotTaken(self.state), now)]


class ListenerHost:
    """A channel's receiver with a user that folds the messages into a state."""

    def __init__(self, name: str, receiver: ChannelReceiver, state: bytes, boot: int) -> None:
        self.name = name
        self.boot = boot
        self.receiver = receiver
        self.state = state
        self._joining = True

    def receive(self, given: Input, now: int) -> Sequence[Effect]:
        """Take a message of the channel."""
        assert isinstance(given, Received)
        return self._fold(self.receiver.receive(given, now), now)

    def advance(self, now: int) -> Sequence[Effect]:
        """Join the group first; after that, the receiver's timers."""
        effects = self._fold(self.receiver.advance(now), now)
        if self._joining:
            self._joining = False
            return [Listen(CHANNEL), *effects]
        return effects

    def deadline(self) -> int | None:
        """The receiver's deadline."""
        return self.receiver.deadline()

    def _fold(self, effects: Sequence[Effect], now: int) -> Sequence[Effect]:
        noted: list[Effect] = []
        for effect in effects:
            noted.append(effect)
            if isinstance(effect, Delivered):
                self.state = after(self.state, effect.payload)
                delay = now - int.from_bytes(effect.payload[:8], "big")
                noted.append(
                    Delivery(
                        self.name, SERVER, effect.sequence, delay, CHANNEL, len(effect.payload)
                    )
                )
            elif isinstance(effect, Replaced):
                self.state = effect.payload
                noted.append(
                    ChannelStep(
                        CHANNEL, "snapshot", effect.incarnation, effect.sequence, effect.reason
                    )
                )
            elif isinstance(effect, Stale):
                noted.append(ChannelStep(CHANNEL, "stale", reason=effect.reason))
        return noted


class ChannelWorkload(Workload):
    """A server, listeners, and the promise of `SequenceOrSnapshot`."""

    name: ClassVar[str] = "channel"
    registry = PROTOCOL
    sizes: ClassVar = {
        "receivers": (1, 16),
        "late": (0, 3),
        "messages": (10, 800),
        "payload_bytes": (16, 400),
        "buffer": (4, 300),
        "ahead": (4, 300),
    }

    def __init__(self, receiver: type[ChannelReceiver] = ChannelReceiver) -> None:
        """`receiver` is the machine under test; a test may pass one that is broken on purpose."""
        self._receiver = receiver
        self._checker = SequenceOrSnapshot()
        self._settings = ChannelSettings()
        self._sizes: Sizes = {}
        self._counts = {"delivered": 0, "snapshots": 0, "published": 0}

    def setup(self, world: World, sizes: Sizes) -> None:
        """One server, then the listeners that are there from the start."""
        self._sizes = sizes
        self._settings = ChannelSettings(
            sync_interval_us=200_000,
            round_trip_us=25_000,
            retry_us_max=1_000_000,
            receivers_expected=sizes["receivers"] + sizes["late"],
            buffer_messages_max=sizes["buffer"],
            ahead_messages_max=sizes["ahead"],
            snapshot_unicasts_max=2,
        )
        world.observe(self._observe)
        world.add_host(SERVER, lambda boot: ServerHost(boot, self._settings))
        for number in range(sizes["receivers"]):
            world.add_host(f"listener-{number}", self._listener_factory(None, START))

    def start(self, world: World, duration_us: int) -> None:
        """Publish at random moments; let late listeners join, every second one with a start."""
        draw = world.kernel.generator("workload/channel")
        size = self._sizes["payload_bytes"]
        for number in range(self._sizes["messages"]):
            filler = draw.randbytes(size - 16)
            at = draw.randrange(duration_us)
            payload = at.to_bytes(8, "big") + number.to_bytes(8, "big") + filler
            world.kernel.call(at, _saying(world, payload))
        for number in range(self._sizes["late"]):
            world.kernel.call(draw.randrange(duration_us), self._joining(world, number))
        for at in range(WATCH_US, duration_us, WATCH_US):
            world.kernel.call(at, lambda _: self._watch(world))

    def settled(self, world: World) -> bool:
        """Every listener stands where the server stands."""
        server = world.hosts[SERVER].machine
        assert isinstance(server, ServerHost)
        if server.sender is None:
            return False
        there = (server.incarnation, server.sender.last)
        listeners = _listeners(world)
        return all(
            (each.receiver.incarnation, each.receiver.expected - 1) == there
            and each.state == server.state
            for each in listeners
        )

    def check(self, world: World) -> None:
        """After the healing everyone has the server's state, and their users were told how."""
        self._watch(world)
        server = world.hosts[SERVER].machine
        assert isinstance(server, ServerHost)
        if server.sender is None:
            raise Violation("liveness", "the server never opened its channel")
        there = (server.incarnation, server.sender.last)
        for each in _listeners(world):
            stands = self._checker.position((each.name, each.boot))
            nothing_said = stands == (0, 0) and there[1] == 0
            if stands != there and not nothing_said:
                detail = f"{each.name} stands at {stands}, the server at {there}"
                raise Violation("liveness", f"{detail}, state {each.receiver.state}")
            if each.state != server.state:
                raise Violation("same state", f"{each.name} at {stands} has another state")

    def metrics(self, world: World) -> dict[str, float]:
        """Count messages, deliveries, snapshots and requests."""
        requests = sum(each.receiver.requests for each in _listeners(world))
        return {**self._counts, "requests": requests}

    def _listener_factory(self, start: tuple[int, int] | None, state: bytes) -> Factory:
        def make(boot: Boot) -> ListenerHost:
            told = start if boot.number == 1 else None  # a restarted client missed everything
            receiver = self._receiver(
                CHANNEL,
                source=SERVER,
                now=boot.now,
                settings=self._settings,
                draw=boot.generator.random,
                start=told,
            )
            position = (told[0], told[1] - 1) if told else (0, 0)
            self._checker.starts((boot.host, boot.number), *position)
            return ListenerHost(boot.host, receiver, state if told else START, boot.number)

        return make

    def _joining(self, world: World, number: int) -> Action:
        def join(_: int) -> None:
            server = world.hosts[SERVER].machine
            start, state = None, START
            if number % 2 and isinstance(server, ServerHost) and server.sender is not None:
                start, state = (server.incarnation, server.sender.last + 1), server.state
            world.add_host(f"late-{number}", self._listener_factory(start, state))

        return join

    def _observe(self, host: Host, effect: Effect, now: int) -> None:
        del now
        who = (host.name, host.boots)
        if isinstance(effect, Delivered):
            self._counts["delivered"] += 1
            self._checker.delivered(who, effect.incarnation, effect.sequence, effect.payload)
        elif isinstance(effect, Replaced):
            self._counts["snapshots"] += 1
            self._checker.replaced(who, effect.incarnation, effect.sequence)
        elif isinstance(effect, ShownToUser):
            self._counts["published"] += 1
            self._checker.sent(effect.incarnation, effect.sequence, effect.payload)

    def _watch(self, world: World) -> None:
        for host in world.hosts.values():
            machine = host.machine
            if isinstance(machine, ListenerHost):
                check_bounds(host.name, machine.receiver)
            elif isinstance(machine, ServerHost) and machine.sender is not None:
                check_bounds(host.name, machine.sender)


def _saying(world: World, payload: bytes) -> Action:
    return lambda _: world.give(world.hosts[SERVER], Say(payload))


def _listeners(world: World) -> list[ListenerHost]:
    machines = (host.machine for host in world.hosts.values())
    return [machine for machine in machines if isinstance(machine, ListenerHost)]


WORKLOAD = ChannelWorkload
