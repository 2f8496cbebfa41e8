"""The link from one part of this host to the service of another host of the cluster.

A host's watchdog dials the others to probe them and to copy their store, its server to learn of a
newer server and to hand over. A host that stands by takes no calls, so most dials are refused at
once, and that is no error.
"""

import secrets
import ssl
from collections.abc import Callable, Sequence
from random import SystemRandom
from typing import Final
from urllib.parse import urlsplit

from websockets.exceptions import InvalidStatus

from roamcast.channels.failover.replica_messages import REPLICA_PROTOCOL, ReplicaHere
from roamcast.errors import AuthError, UnreachableError
from roamcast.live.cluster.proof import NONCE_BYTES, Part, call, check_answer
from roamcast.live.config.settings import Cluster
from roamcast.live.observe.logs import Log
from roamcast.model.wire import Message, Unreadable
from roamcast.transport.driver import Clock
from roamcast.transport.http import error_of, unreachable
from roamcast.transport.link import LinkPolicy, LinkTarget, ReconnectingLink

# A host that stands by may serve at any moment, and take-over waits for this link: dial at a steady
# pace, however long the other host has been away.
POLICY: Final = LinkPolicy(0.4, 0.4, open_s=3.0, close_s=0.5)

SILENCE_S: Final = 5.0
"""A service announces itself every second; a link that is silent for this long is dead."""

_LOG = Log("replicas")


class ReplicaLink(ReconnectingLink):
    """One part of this host and the service of another host."""

    def __init__(
        self,
        to: str,
        *,
        own: str,
        part: Part,
        cluster: Cluster,
        clock: Clock,
        on_here: Callable[[ReplicaHere], None],
        on_message: Callable[[str, Message], None],
        on_lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_here` takes the first message, once its proof is checked."""
        super().__init__(REPLICA_PROTOCOL, POLICY, draw=SystemRandom().random)
        self.to = to
        self._own = own
        self._part = part
        self._url = cluster.replicas[to]
        self._secret = cluster.secret()
        self._tls = tls_of(cluster) if self._url.startswith("https:") else None
        self._clock = clock
        self._on_here = on_here
        self._on_message = on_message
        self._on_lost = on_lost
        self._nonce = b""
        self._problem = ""

    def targets(self) -> Sequence[LinkTarget]:
        """Give the other host's address, with a proof that is good for this one dial."""
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        proof = call(
            self._secret, self._own, self._part, self.to, now=self._clock(), nonce=self._nonce
        )
        scheme = "wss" if self._tls else "ws"
        url = f"{scheme}://{urlsplit(self._url).netloc}/replica"
        return [LinkTarget(url, {"Authorization": proof}, self.to, tls=self._tls)]

    def dial_error(self, target: LinkTarget, error: Exception) -> UnreachableError:
        """Report what an operator can mend; whatever it is, the link dials again."""
        problem = ""
        if isinstance(error, InvalidStatus):
            body = bytes(error.response.body or b"")
            if isinstance(error_of(error.response.status_code, body, self._url), AuthError):
                problem = (
                    "another host refuses this one: compare secret_file and [cluster.replicas]"
                )
            else:
                problem = "another service answers where a host should be"
        elif isinstance(error, ssl.SSLError):
            problem = "another host's certificate is not accepted: see tls_ca"
        self._report(problem, error)
        return unreachable(target.url, error)

    def check_first(self, target: LinkTarget, first: Message | Unreadable) -> None:
        """Raise unless the service proves that it is the host we dialled."""
        genuine = (
            isinstance(first, ReplicaHere)
            and first.host == self.to
            and check_answer(self._secret, self._nonce, self.to, first.proof)
        )
        if not genuine:
            self._report("whoever answers for another host does not know the hosts' secret")
            raise UnreachableError(f"{target.url} does not prove that it is host {self.to}")

    def opened(self, target: LinkTarget, first: Message) -> float:
        """Hand on the first message."""
        del target
        assert isinstance(first, ReplicaHere)
        self._problem = ""
        self._on_here(first)
        return SILENCE_S

    def received(self, message: Message) -> None:
        """Hand on every further message."""
        self._on_message(self.to, message)

    def closed(self) -> None:
        """Tell the part of this host that its link is lost."""
        self._on_lost(self.to)

    def _report(self, problem: str, error: Exception | None = None) -> None:
        """Log a problem once, not at every dial."""
        if problem and problem != self._problem:
            _LOG.error(problem, error)
        self._problem = problem


def tls_of(cluster: Cluster) -> ssl.SSLContext:
    """Trust who signs the hosts' certificates."""
    return ssl.create_default_context(cafile=cluster.tls_ca or None)
