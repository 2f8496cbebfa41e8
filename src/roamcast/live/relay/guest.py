"""A guest of a relay: one client, and its own link to the service.

A client hands its token to the relay, as it would to the service, and the relay opens a link with
it. The service checks the token then, counts the connection, ends the link when the token ends, and
says on it which view class the client is in (decision 0080). What happens on the link goes to the
relay's machine (`channels.relay.admission`); this module only holds the socket.
"""

import asyncio
import ssl
from collections.abc import Callable

from roamcast.channels.client.link_messages import LinkWelcome, Tune, settings_of
from roamcast.channels.client.session import silence_us
from roamcast.channels.relay.guests import (
    GuestLinkDown,
    GuestLinkEnded,
    GuestLinkUp,
    GuestReceived,
)
from roamcast.channels.server.desk import Public
from roamcast.channels.server.messages import WELL_KNOWN
from roamcast.errors import AuthError, ForbiddenError
from roamcast.identity.policy import subject_of
from roamcast.live.links.link import ClientLink, LinkSocket
from roamcast.live.relay.tunnel import Tunnel
from roamcast.model.machine import Draw, Input
from roamcast.model.time import MICROSECONDS
from roamcast.model.wire import Message
from roamcast.transport.address import ServiceAddress
from roamcast.transport.link import EndedError
from roamcast.transport.service_link import ServiceLink

Give = Callable[[Input], None]


class BySubject(Public):
    """A subject's devices may take over each other's publications; nobody else may."""

    def may_take(self, client: str, owner: str) -> bool:
        """Decide as the service does."""
        return subject_of(client) == subject_of(owner)


class Guest:
    """One client of a relay, by the number its machine knows it by."""

    def __init__(
        self,
        number: int,
        give: Give,
        address: ServiceAddress,
        device: str,
        *,
        draw: Draw,
        open_s: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.number = number
        self.welcome: LinkWelcome | None = None
        self.tunnel: Tunnel | None = None
        """There is one while the guest is passed through."""
        self.served_by: ClientLink | None = None
        """There is one while the guest is served by the machine."""
        self.socket: LinkSocket | None = None
        """The client's connection to the relay."""
        loop = asyncio.get_running_loop()
        self.decided: asyncio.Future[ClientLink | Tunnel | None] = loop.create_future()
        """Whom the client talks to, once the machine has decided; None: it is sent away."""
        self.over: asyncio.Future[None] = loop.create_future()
        """Done when nothing of the guest is on its way any more."""
        self.link = ServiceLink(
            address,
            device,
            on_welcome=self._on_welcome,
            on_message=self._on_message,
            on_renewal=self._on_renewal,
            on_close=self._on_close,
            draw=draw,
            open_s=open_s,
            tls=tls,
        )
        self._give = give
        self._arrived = False
        self._task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The name the service knows this client by, `subject#device`."""
        assert self.welcome is not None
        return self.welcome.client

    @property
    def subject(self) -> str:
        """Whose token it is."""
        return subject_of(self.name)

    async def open(self) -> None:
        """Dial; raises why the service does not let this client in."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self.link.run(ready))
        try:
            await asyncio.wait((ready, self._task), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.close()
            raise
        if self._task.done():
            await self._task  # raises why
        self._task.add_done_callback(self._ended)

    def arrived(self) -> None:
        """The machine knows this guest from now on."""
        self._arrived = True

    def finish(self) -> None:
        """Nothing of this guest is on its way any more."""
        if not self.decided.done():
            self.decided.set_result(None)
        if not self.over.done():
            self.over.set_result(None)

    async def close(self) -> None:
        """Close the link."""
        self._arrived = False
        if self._task is not None:
            self._task.remove_done_callback(self._ended)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _on_welcome(self, welcome: LinkWelcome) -> float:
        self.welcome = welcome
        # The well-known group carries the service's beats, by which we notice when it is gone.
        self.link.send(Tune(WELL_KNOWN, True))
        self._report(GuestLinkUp(self.number, welcome))
        return silence_us(settings_of(welcome.settings)) / MICROSECONDS

    def _on_message(self, group: str, message: Message) -> None:
        if self.tunnel is not None:
            self.tunnel.send(group, message)
        else:
            self._report(GuestReceived(self.number, message, group))

    def _on_renewal(self, welcome: LinkWelcome) -> None:
        self.welcome = welcome
        if self.tunnel is not None:
            self.tunnel.welcome(welcome)

    def _on_close(self) -> None:
        self._report(GuestLinkDown(self.number))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._report(GuestLinkEnded(self.number, _reason_of(task.exception())))

    def _report(self, given: Input) -> None:
        if self._arrived:
            self._give(given)


def _reason_of(error: BaseException | None) -> str:
    """Give the reason in the service's own words, by which a client knows what ended its link."""
    reason = str(error)
    if isinstance(error, AuthError):
        return f"{'scope' if isinstance(error, ForbiddenError) else 'token'}: {reason}"
    return reason.partition(": ")[2] if isinstance(error, EndedError) else reason
