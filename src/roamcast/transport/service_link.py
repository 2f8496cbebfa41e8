"""The link between a client and its service: the SDK, a relay and a relay's guests have one each.

It presents a token, expects a `LinkWelcome`, unpacks what groups carry, and understands why a
service ends a link. It waits a quarter of the outage so far before it dials again, so a service
that was away for T is found again within T/4, and one that is away for long is not pestered
(decision 0075).
"""

import ssl
from collections.abc import Callable, Sequence
from typing import Final

from websockets.exceptions import InvalidStatus

from roamcast.channels.client.link_messages import LINK_PROTOCOL, Goodbye, Grouped, LinkWelcome
from roamcast.channels.client.session import OUTAGE_PART
from roamcast.errors import AuthError, ForbiddenError, RoamcastError, UnreachableError
from roamcast.model.machine import Draw
from roamcast.model.time import MICROSECONDS
from roamcast.model.wire import Message, Unreadable
from roamcast.transport.address import Hosts, ServiceAddress
from roamcast.transport.http import error_of, unreachable
from roamcast.transport.link import EndedError, LinkPolicy, LinkTarget, ReconnectingLink

SUBPROTOCOL: Final = "roamcast.link.v1"
WAIT_S_MIN: Final = 0.05
WAIT_S_MAX: Final = 15.0

OnWelcome = Callable[[LinkWelcome], float | None]
"""Takes the first message of a link; gives how many seconds of silence mean that it is dead.

None: this host serves an older map than the client has seen, so it looks for another one.
"""

OnMessage = Callable[[str, Message], None]
"""Takes a group's name, "" for unicast, and a message."""


class ServiceLink(ReconnectingLink):
    """One client's link to its service."""

    def __init__(
        self,
        where: ServiceAddress | Hosts,
        device: str,
        *,
        on_welcome: OnWelcome,
        on_message: OnMessage,
        on_renewal: Callable[[LinkWelcome], None],
        on_close: Callable[[], None] = lambda: None,
        draw: Draw,
        open_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`on_renewal` takes a later welcome, which brings another key for groups.

        `on_close` is called when a link that had been welcomed is over and another one is dialled.
        """
        policy = LinkPolicy(
            WAIT_S_MIN, WAIT_S_MAX, OUTAGE_PART, open_s=open_s, first_must_open=True
        )
        super().__init__(LINK_PROTOCOL, policy, draw=draw)
        self.hosts = where if isinstance(where, Hosts) else Hosts(where)
        self.device = device
        self.key = ""
        """The token of this link, or of the last one."""
        self.on_message = on_message
        self.on_renewal = on_renewal
        self._on_welcome = on_welcome
        self._on_close = on_close
        self._tls = tls

    def targets(self) -> Sequence[LinkTarget]:
        """Every host of the service, with one and the same key."""
        hosts = self.hosts.all()
        self.key = hosts[0].key
        headers = {"Authorization": f"Bearer {self.key}"}
        return [
            LinkTarget(host.link(self.device), headers, host.url, SUBPROTOCOL, self._tls)
            for host in hosts
        ]

    def dial_error(self, target: LinkTarget, error: Exception) -> RoamcastError:
        """A key that is refused is refused for good; everything else may pass."""
        if not isinstance(error, InvalidStatus):
            return unreachable(target.name, error)
        answer = error.response
        problem = error_of(answer.status_code, bytes(answer.body or b""), target.name)
        return problem if isinstance(problem, AuthError) else UnreachableError(str(problem))

    def check_first(self, target: LinkTarget, first: Message | Unreadable) -> None:
        """A service begins with a welcome, or says goodbye at once."""
        if isinstance(first, LinkWelcome):
            return
        if isinstance(first, Goodbye):
            self._part(first)
            raise UnreachableError(f"{target.name} ended the link at once: {first.reason}")
        raise UnreachableError(
            f"{target.name} does not speak {SUBPROTOCOL}; is it a Roamcast service?"
        )

    def opened(self, target: LinkTarget, first: Message) -> float | None:
        """Ask this host first from now on, or last if it serves an older map."""
        assert isinstance(first, LinkWelcome)
        hosts = self.hosts
        hosts.answered(target.name)
        silence_s = self._on_welcome(first)
        if silence_s is None:
            hosts.passed_over(target.name)
        return silence_s

    def received(self, message: Message) -> None:
        """Unpack what came by a group, and hand it on."""
        group = ""
        if isinstance(message, Grouped):
            group = message.group
            inner = LINK_PROTOCOL.decode(message.frame)
            if isinstance(inner, Unreadable):
                self.unreadable += 1
                return
            message = inner
        if isinstance(message, Goodbye):
            self._part(message)
        elif isinstance(message, LinkWelcome):
            self.on_renewal(message)
        else:
            self.on_message(group, message)

    def closed(self) -> None:
        """Tell the client."""
        self._on_close()

    def _part(self, goodbye: Goodbye) -> None:
        """Come again when the service says so; raise if it says never."""
        if goodbye.reason.startswith("scope:"):
            raise ForbiddenError(goodbye.reason.removeprefix("scope:").strip())
        if goodbye.reason.startswith("token:"):
            # Another key opens another link; the same key would be refused.
            if self.hosts.current.key == self.key:
                raise AuthError(goodbye.reason.removeprefix("token:").strip())
            return
        if goodbye.retry_us == 0:
            raise EndedError(f"the service ended the session: {goodbye.reason}")
        self.pause_s = goodbye.retry_us / MICROSECONDS
