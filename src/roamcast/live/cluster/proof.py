"""Is this one of our hosts? Each proves that it knows the secret, and never sends it.

Who dials signs its name, its part, whom it calls, the time and a number drawn for this call; the
service checks that before it accepts the connection, and signs that number in its answer. Calls go
over TLS or stay on one machine, so nobody else can repeat what was signed.
"""

import hashlib
import hmac
import re
from typing import Final, Literal, NamedTuple, get_args

from roamcast.errors import AuthError

Part = Literal["watchdog", "server"]
"""Which part of a host calls."""

SCHEME: Final = "Roamcast-Host"
NONCE_BYTES: Final = 16
SKEW_US_MAX: Final = 3_600_000_000
"""Clocks of hosts may differ by as much as their epochs may (`channels.failover.epochs`)."""

_CALL: Final = re.compile(
    r"([a-z0-9-]{1,63})\.(watchdog|server)\.([0-9]{1,19})\.([0-9a-f]{32})\.([0-9a-f]{64})"
)


class Caller(NamedTuple):
    """A host that proved itself, and the number it drew."""

    host: str
    part: Part
    nonce: bytes


def call(secret: bytes, host: str, part: Part, to: str, *, now: int, nonce: bytes) -> str:
    """Give what a host says of itself in the `Authorization` of its call."""
    said = f"{host}.{part}.{now}.{nonce.hex()}"
    return f"{SCHEME} {said}.{_sign(secret, 'call', said, to).hex()}"


def check_call(secret: bytes, header: str, to: str, hosts: "tuple[str, ...]", now: int) -> Caller:
    """Let a host in that knows the secret and is another of ours."""
    scheme, _, rest = header.partition(" ")
    found = _CALL.fullmatch(rest)
    if scheme != SCHEME or found is None:
        raise AuthError("only hosts of this cluster call here")
    host, part, at, nonce, signed = found.groups()
    assert part in get_args(Part)
    right = _sign(secret, "call", rest.rpartition(".")[0], to)
    if not hmac.compare_digest(right, bytes.fromhex(signed)):
        raise AuthError("this host has another secret: give all of them the same secret_file")
    if host not in hosts or host == to:
        raise AuthError(f"{host} is none of the other hosts in [cluster.replicas] here")
    if abs(int(at) - now) > SKEW_US_MAX:
        raise AuthError("the clocks of the hosts differ by more than an hour: set them")
    return Caller(host, "server" if part == "server" else "watchdog", bytes.fromhex(nonce))


def answer(secret: bytes, nonce: bytes, host: str) -> bytes:
    """Prove to a caller that this is the host it called."""
    return _sign(secret, "answer", nonce.hex(), host)


def check_answer(secret: bytes, nonce: bytes, host: str, proof: bytes) -> bool:
    """Whether the service that answered is the host that was called."""
    return hmac.compare_digest(answer(secret, nonce, host), proof)


def _sign(secret: bytes, *texts: str) -> bytes:
    return hmac.digest(secret, "\n".join(texts).encode(), hashlib.sha256)
