"""Groups by NATS: each is a subject below the service's prefix, and its messages are sealed.

Core NATS without JetStream: at most once is enough, because the channels number and heal what they
send (decision 0072). The nats-py client reconnects by itself. What is sent meanwhile is lost and
healed; clients notice by the missing probes.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from roamcast.channels.client.link_messages import GROUP_FRAME_BYTES_MAX
from roamcast.errors import GroupsUnavailable
from roamcast.transport.groups import Deliver
from roamcast.transport.sealing import SealOf

WAITING_MAX: Final = 4_096
"""Messages queued for the NATS server; beyond it they are lost, and healed."""

GROUPS_MAX: Final = 65_536
PENDING_MESSAGES_MAX: Final = 4_096
PENDING_BYTES_MAX: Final = 16 * 1024 * 1024
RECONNECT_S: Final = 0.25
CLOSE_S: Final = 5.0

_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class NatsGroups:
    """Sends to groups and listens to them through a NATS server."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str,
        seal_of: SealOf,
        deliver: Deliver,
        user: str = "",
        password: str = "",
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._url = url
        self._prefix = prefix
        self._seal_of = seal_of
        self._deliver = deliver
        self._login = {"user": user, "password": password} if user else {}
        self._client: Any = None
        self._changed = False
        self._wanted: dict[str, None] = {}
        self._subscribed: dict[str, Any] = {}
        self._waiting: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue(WAITING_MAX)
        self._work: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to connect; a server that is not there yet is tried again."""
        if not _PREFIX.fullmatch(self._prefix):
            raise GroupsUnavailable(
                f"{self._prefix!r} begins no NATS subject: use letters, digits, '-' and '_'"
            )
        if not self._url.startswith(("nats://", "tls://")):
            raise GroupsUnavailable(
                f"{self._url!r} is no address of a NATS server such as nats://127.0.0.1:4222"
            )
        self._work = asyncio.get_running_loop().create_task(self._run())

    def listen(self, group: str) -> None:
        """Subscribe to the group's subject as soon as connected."""
        if len(self._wanted) >= GROUPS_MAX:
            self.counts["too many groups"] += 1
            return
        self._wanted[group] = None
        self._nudge()

    def ignore(self, group: str) -> None:
        """Unsubscribe."""
        self._wanted.pop(group, None)
        self._nudge()

    def _nudge(self) -> None:
        """Wake the worker, which compares what is wanted with what is subscribed to."""
        self._changed = True
        if not self._waiting.full():  # else it wakes anyway
            self._waiting.put_nowait(None)

    def send(self, group: str, frame: bytes, key_class: str = "") -> None:
        """Queue a message; while there is no server, or too much waits, it is lost."""
        if len(frame) > GROUP_FRAME_BYTES_MAX:
            self.counts["too large"] += 1
        elif self._client is None or not self._client.is_connected or self._waiting.full():
            self.counts["not sent"] += 1
        else:
            seal = self._seal_of(key_class)
            subject = self._subject(seal.digest_of(group))
            self._waiting.put_nowait((subject, seal.seal(group, frame)))

    def _subject(self, digest: bytes) -> str:
        return f"{self._prefix}.{digest.hex()}"

    async def _run(self) -> None:
        """Connect, then work through the queue: nats-py's calls must be awaited."""
        from nats.errors import Error

        while True:
            try:
                await self._connect()
                while not self._client.is_closed:
                    waiting = await self._waiting.get()
                    if self._changed:
                        await self._subscribe()
                    if waiting is not None:
                        await self._client.publish(*waiting)
                        self.counts["sent"] += 1
            except (Error, OSError, TimeoutError) as error:
                await self._failed(error)
                await asyncio.sleep(RECONNECT_S)
                self._nudge()

    async def _connect(self) -> None:
        """Connect for the first time, or after nats-py gave up; otherwise it reconnects itself."""
        if self._client is not None and not self._client.is_closed:
            return
        from nats.aio.client import Client

        self._subscribed.clear()
        self._changed = True
        self._client = Client()
        await self._client.connect(
            servers=[self._url],
            error_cb=self._failed,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_S,
            ping_interval=10,
            skip_subject_validation=True,
            **self._login,
        )
        self._nudge()

    async def _subscribe(self) -> None:
        """Subscribe to what is wanted and unsubscribe from what is not."""
        self._changed = False
        for group in [name for name in self._subscribed if name not in self._wanted]:
            await self._subscribed.pop(group).unsubscribe()
        for group in [name for name in self._wanted if name not in self._subscribed]:
            digest = self._seal_of("").digest_of(group)
            self._subscribed[group] = await self._client.subscribe(
                self._subject(digest),
                cb=self._receiver(group),
                pending_msgs_limit=PENDING_MESSAGES_MAX,
                pending_bytes_limit=PENDING_BYTES_MAX,
            )

    def _receiver(self, group: str) -> Callable[[Any], Awaitable[None]]:
        async def receive(message: Any) -> None:
            if group not in self._wanted:
                return
            frame = self._seal_of("").open(group, message.data)
            if frame is None:
                self.counts["not opened"] += 1
                return
            self.counts["received"] += 1
            self._deliver(group, frame)

        return receive

    async def _failed(self, error: Exception) -> None:
        """Count by kind; nats-py tries again."""
        self.counts[f"NATS: {type(error).__name__}"] += 1

    async def close(self) -> None:
        """Stop, and leave the server."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
            self._work = None
        if self._client is not None and not self._client.is_closed:
            await asyncio.wait_for(self._client.close(), CLOSE_S)
