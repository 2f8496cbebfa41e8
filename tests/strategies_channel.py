"""Two ends of a channel, joined by hand: what the sender says goes where the test lets it."""

from collections.abc import Callable, Sequence

from roamcast.channels.reliable.messages import PROTOCOL, Data, HealResponse, Synchronisation
from roamcast.channels.reliable.receiver import ChannelReceiver, Delivered
from roamcast.channels.reliable.sender import ChannelSender, Transmit
from roamcast.channels.reliable.settings import ChannelSettings
from roamcast.model.machine import Effect, Multicast, Received, Send
from roamcast.model.wire import Message

NAME = "updates"
SETTINGS = ChannelSettings(receivers_expected=1)


def sender(settings: ChannelSettings = SETTINGS, **named: object) -> ChannelSender:
    chosen = {"incarnation": 1, "now": 0, "settings": settings, **named}
    return ChannelSender(NAME, **chosen)  # type: ignore[arg-type]


def receiver(
    settings: ChannelSettings = SETTINGS,
    *,
    start: tuple[int, int] | None = (1, 1),
    draw: Callable[[], float] = lambda: 0.5,
    kind: type[ChannelReceiver] = ChannelReceiver,
) -> ChannelReceiver:
    return kind(NAME, source="server", now=0, settings=settings, draw=draw, start=start)


def publish(machine: ChannelSender, count: int, now: int = 0) -> list[Data]:
    """Publish messages 1, 2, … and give what went to the group."""
    sent = []
    for _ in range(count):
        payload = str(machine.last + 1).encode()
        (effect,) = machine.receive(Transmit(payload), now)
        assert isinstance(effect, Multicast)
        assert isinstance(effect.message, Data)
        sent.append(effect.message)
    return sent


def give(
    machine: ChannelReceiver | ChannelSender, message: Message, now: int = 0, sender: str = "server"
) -> list[Effect]:
    """Hand a message over as the wire would."""
    read = PROTOCOL.decode(PROTOCOL.encode(message))
    assert isinstance(read, Message), read
    return list(machine.receive(Received(sender, read), now))


def data(sequence: int, incarnation: int = 1) -> Data:
    return Data(NAME, incarnation, sequence, str(sequence).encode())


def heal(sequence: int, incarnation: int = 1) -> HealResponse:
    return HealResponse(NAME, incarnation, sequence, str(sequence).encode())


def sync(last: int, *, first: int = 1, incarnation: int = 1) -> Synchronisation:
    return Synchronisation(NAME, incarnation, first, last, 1)


def delivered(effects: Sequence[Effect]) -> list[int]:
    return [effect.sequence for effect in effects if isinstance(effect, Delivered)]


def messages(effects: Sequence[Effect], kind: type[Effect]) -> list[Message]:
    """The messages that leave by unicast (Send) or to the group (Multicast)."""
    return [e.message for e in effects if isinstance(e, kind) and isinstance(e, Send | Multicast)]
