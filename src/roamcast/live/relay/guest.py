"""Who is this client of an agent, and what may it see? Its own link to the service says so.

A client hands its token to the agent, as it would to the service, and the agent opens a link with
it. The service checks the token then, counts the connection, ends the link when the token ends, and
says on it which view class the client is in. What the client publishes leaves by this link in its
own name; what it is told comes by it only where the agent cannot serve it (`agent_tunnel`).
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from roamcast.channels.client.link_messages import LinkWelcome, Tune, settings_of
from roamcast.channels.client.map_client import MapClient
from roamcast.channels.server.desk import Public
from roamcast.channels.server.messages import WELL_KNOWN, ServerHere
from roamcast.errors import AuthError, ForbiddenError
from roamcast.identity.policy import subject_of
from roamcast.model.machine import Draw, Effect, Input, Received, Send
from roamcast.model.time import MICROSECONDS
from roamcast.model.wire import Message
from roamcast.transport.address import ServiceAddress
from roamcast.transport.driver import Clock, Driver
from roamcast.transport.link import SILENCE_BEATS, EndedError, ReconnectingLink

FAREWELL_S: Final = 1.0
"""So long a client's own link stays until the service has taken the last it said."""


class BySubject(Public):
    """A subject's devices may take over from each other what they publish; nobody else may."""

    def may_take(self, client: str, owner: str) -> bool:
        """As at the service."""
        return subject_of(client) == subject_of(owner)


class Host(Protocol):
    """What a guest needs of its agent."""

    def welcomed_again(self, guest: "Guest") -> None:
        """A guest's own link was away, and is back."""

    def over(self, guest: "Guest", reason: str) -> None:
        """A guest's own link has ended for good."""


class Guest:
    """One client of an agent."""

    def __init__(
        self,
        host: Host,
        address: ServiceAddress,
        device: str,
        *,
        draw: Draw,
        open_s: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.welcome: LinkWelcome | None = None
        self.told: Callable[[str, Message], None] = lambda _group, _message: None
        self.renewed: Callable[[LinkWelcome], None] = lambda _welcome: None
        self.link = ReconnectingLink(
            address,
            device,
            welcomed=self._welcomed,
            told=self._told,
            renewed=self._renewed,
            draw=draw,
            open_s=open_s,
            tls=tls,
        )
        self._host = host
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

    def is_sure(self, epoch: int, view: bytes) -> bool:
        """Whether the service says now, in this life of it, that the client is of this class."""
        welcome = self.welcome
        return (
            self.link.connected
            and welcome is not None
            and (welcome.epoch, welcome.view) == (epoch, view)
        )

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

    async def close(self) -> None:
        """Let go of the link."""
        if self._task is not None:
            self._task.remove_done_callback(self._ended)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _welcomed(self, welcome: LinkWelcome) -> float:
        again = self.welcome is not None
        self.welcome = welcome
        self.link.send(Tune(WELL_KNOWN, True))  # by this it is noticed when the service is gone
        if again:
            self._host.welcomed_again(self)
        settings = settings_of(welcome.settings)
        beats_us = SILENCE_BEATS * settings.server_here_us
        return max(beats_us, settings.client_timeout_us) / MICROSECONDS

    def _told(self, group: str, message: Message) -> None:
        self.told(group, message)

    def _renewed(self, welcome: LinkWelcome) -> None:
        self.welcome = welcome
        self.renewed(welcome)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._host.over(self, _said(task.exception()))


def _said(error: BaseException | None) -> str:
    """Give the service's own words for the end of a session."""
    said = str(error)
    if isinstance(error, AuthError):  # by these words a client knows what ended it
        return f"{'scope' if isinstance(error, ForbiddenError) else 'token'}: {said}"
    return said.partition(": ")[2] if isinstance(error, EndedError) else said


class Publisher:
    """What one client publishes, said to the service in its name by its own link.

    It outlives a link: a client that comes again at once has lost nothing.
    """

    def __init__(
        self, guest: Guest, *, clock: Clock, draw: Draw, heard: Callable[[Effect], None]
    ) -> None:
        """`heard` takes what the service told about what was published."""
        welcome = guest.welcome
        assert welcome is not None
        self.guest = guest
        self._heard = heard
        self._machine = MapClient(
            welcome.client,
            server=welcome.server,
            epoch=welcome.epoch,
            now=clock(),
            settings=settings_of(welcome.settings),
            draw=draw,
        )
        self._driver = Driver(self._machine, clock=clock, carry=self._carry)
        self._driver.start()
        self.ride(guest)

    def ride(self, guest: Guest) -> None:
        """Go on by this link from now on, and learn whether the service is the same."""
        assert guest.welcome is not None
        self.guest = guest
        guest.told = self._told
        self._told("", ServerHere(guest.welcome.epoch, 0))

    def give(self, given: Input) -> None:
        """Publish, cancel or withdraw something."""
        self._driver.give(given)

    def close(self) -> None:
        """Say nothing any more."""
        self._driver.close()

    async def settle(self) -> None:
        """Wait until the service has taken everything, but not for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                while not self._machine.idle:
                    await asyncio.sleep(0.02)

    def _told(self, group: str, message: Message) -> None:
        self._driver.give(Received(self._machine.server, message, group))

    def _carry(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self.guest.link.send(effect.message)
        else:
            self._heard(effect)
