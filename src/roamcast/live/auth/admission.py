"""Admission: who may ask, by tokens, and how much, by rates and open connections.

A token is a JWT, signed by an Ed25519 key of the service (decision 0071): a subject, scopes, groups
for privacy rules, an expiry and an id. The key file is readable by its owner only and replaced as a
whole. `roamcast token` changes it under a lock while the service runs; the service reads it again
at the next check. Rotation signs with a new key and retains the old one's public half until its
last token has expired. A revoked token is refused by its id.

Each subject has a rate, kept by a bucket, and a number of open connections.
"""

import fcntl
import os
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

import msgspec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import GuestProtocol, OKPKey
from msgspec import Meta

from roamcast.errors import AuthError, ForbiddenError, InputError, LimitError, RateError
from roamcast.live.auth.authority import NOWHERE, CastAuthority
from roamcast.live.auth.key_file import KeyFile, PublicKey, load_key_file, save_key_file
from roamcast.live.config.settings import DAY_S, KEY_FILE
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter, recent
from roamcast.model.time import MICROSECONDS, format_instant

Scope = Literal["read", "publish", "subscribe", "cast", "deposit", "admin"]
"""`deposit` is for brokers: they vouch for the senders of the mail that they deposit."""

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

TOKEN_LENGTH_MAX: Final = 8_192
SUBJECT_LENGTH_MAX: Final = 128
GROUPS_MAX: Final = 64
LIFETIME_S_MAX: Final = 366 * DAY_S
REVOKED_MAX: Final = 100_000
KEYS_MAX: Final = 64
BOUND_LENGTH_MAX: Final = 4_096
"""Characters of a token's filter: it travels with every request."""

ANCESTORS_MAX: Final = 8
CHECKED_MAX: Final = 10_000
"""Tokens whose verified signatures are cached."""

SUBJECTS_MAX: Final = 100_000
"""Buckets remembered; the one unused for longest is forgotten, by then usually full again."""

_ALGORITHM: Final = "Ed25519"  # RFC 9864; the older name EdDSA leaves the curve open
NAME: Final = re.compile(r"[^\s#*\x00-\x1f\x7f][^#*\x00-\x1f\x7f]{0,127}")
"""`#` separates a subject from its device, `*` is everyone in rules."""


RandomBytes = Callable[[int], bytes]


class Grant(msgspec.Struct, frozen=True):
    """What a valid token grants."""

    subject: str
    scopes: tuple[Scope, ...]
    groups: frozenset[str]
    expires_us: int
    token_id: str
    key_id: str
    filter: str = ""
    """CQL2 that bounds what the token reads and publishes; empty: nothing does."""
    ancestors: tuple[str, ...] = ()
    """Ids of the tokens it was made from: it ends with each of them."""
    issuer: str = ""
    """The identity provider that signed it; empty: this service did."""
    cast: CastAuthority = NOWHERE
    """Where its casts may go."""

    def bound(self, wanted: Filter) -> Filter:
        """Give a filter within what the token may read."""
        return Filter.all_of([wanted, recent.read(self.filter)]) if self.filter else wanted

    def sees(self, context: Context) -> bool:
        """Whether a context is within the token's filter."""
        return not self.filter or recent.read(self.filter).matches(context)

    def check_within(self, context: Context) -> None:
        """Refuse to publish what is outside the token's filter."""
        if not self.sees(context):
            raise ForbiddenError(f"this token publishes only what satisfies {self.filter}")

    def require_unbound(self, what: str) -> None:
        """Refuse what would reach beyond the token's filter."""
        if self.filter:
            raise ForbiddenError(f"a token with a filter may not {what}")

    def require(self, scope: Scope) -> None:
        """Refuse (403) unless the token has this scope; `admin` has them all."""
        if scope not in self.scopes and "admin" not in self.scopes:
            had = ", ".join(self.scopes) or "none"
            raise ForbiddenError(
                f"this needs the scope {scope}, the token has {had}: "
                f"make one with `roamcast token --scope {scope}`"
            )


class NarrowerToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a token made from another shall do; what is left out is as in the other."""

    lifetime_s: Annotated[
        float,
        Meta(gt=0, le=LIFETIME_S_MAX, description="seconds; it ends with the other at the latest"),
    ] = 3_600.0
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=len(SCOPES))] | None = None
    groups: (
        Annotated[
            tuple[Annotated[str, Meta(min_length=1, max_length=SUBJECT_LENGTH_MAX)], ...],
            Meta(max_length=GROUPS_MAX),
        ]
        | None
    ) = None
    filter: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=BOUND_LENGTH_MAX,
                description="CQL2 that bounds what it reads and publishes; not with admin",
                extra_json_schema={"format": "cql2"},
            ),
        ]
        | None
    ) = None


class _Claims(msgspec.Struct, frozen=True, omit_defaults=True):
    sub: str
    exp: int
    iat: int
    jti: str
    scopes: list[str]
    groups: list[str] = []
    filter: str = ""
    ancestors: list[str] = []
    cast: CastAuthority = NOWHERE


class TokenKeys:
    """The keys of one service; `now` is in microseconds since 1970 throughout."""

    def __init__(self, path: Path, *, random_bytes: RandomBytes, skew_s: float) -> None:
        self._path = path
        self._random = random_bytes
        self._skew_us = round(skew_s * MICROSECONDS)
        self._seen: tuple[int, int, int] | None = None
        self._file = KeyFile()
        self._public: dict[str, OKPKey] = {}
        self._refused: dict[str, int] = {}
        self._checked: OrderedDict[str, tuple[Grant, int]] = OrderedDict()

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        random_bytes: RandomBytes = os.urandom,
        skew_s: float = 60.0,
    ) -> "TokenKeys":
        """Open the keys of a data folder; the first time, make them."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        keys = cls(folder / KEY_FILE, random_bytes=random_bytes, skew_s=skew_s)
        with keys._changing():
            if not keys._path.exists():
                keys._save(keys._rotated(KeyFile()))
        keys._refresh()
        return keys

    def current(self) -> str:
        """Give the id of the key that signs now."""
        self._refresh()
        return self._file.keys[-1].id

    @property
    def revoked(self) -> Mapping[str, int]:
        """The tokens that the file revokes: id → when each would have expired."""
        return self._file.revoked

    def has_revoked(self, token_ids: Iterable[str]) -> bool:
        """Whether one of these tokens is revoked."""
        return any(one in self._file.revoked or one in self._refused for one in token_ids)

    def refuse(self, token_id: str, until_us: int) -> None:
        """Refuse a token that another replica has revoked."""
        self._refused[token_id] = until_us
        if len(self._refused) > REVOKED_MAX:  # the soonest to expire is needed least
            self._refused.pop(min(self._refused, key=self._refused.__getitem__))

    def knows(self, key_id: str) -> bool:
        """Whether tokens signed by this key are accepted here."""
        self._refresh()
        return key_id in self._public

    def issue(
        self,
        subject: str,
        scopes: Iterable[str],
        groups: Iterable[str] = (),
        *,
        lifetime_s: float,
        now: int,
        bound: str = "",
        ancestors: Sequence[str] = (),
        cast: CastAuthority = NOWHERE,
    ) -> str:
        """Sign a token; `bound` is a filter that it may not reach beyond."""
        wanted, belongs = _check_claims(subject, scopes, groups)
        if not 0 < lifetime_s <= LIFETIME_S_MAX:
            raise LimitError(f"a token lives more than 0 and at most {LIFETIME_S_MAX} seconds")
        began = now // MICROSECONDS
        claims = _Claims(
            sub=subject,
            exp=began + max(round(lifetime_s), 1),
            iat=began,
            jti=self._random(12).hex(),
            scopes=wanted,
            groups=belongs,
            filter=bound,
            ancestors=list(ancestors),
            cast=cast,
        )
        with self._changing() as file:
            current = file.keys[-1]
            if claims.exp * MICROSECONDS > current.until_us:  # its public half is needed until then
                until = msgspec.structs.replace(current, until_us=claims.exp * MICROSECONDS)
                self._save(msgspec.structs.replace(file, keys=(*file.keys[:-1], until)))
        header = {"alg": _ALGORITHM, "kid": current.id, "typ": "JWT"}
        private = OKPKey.import_key({**_jwk(current), "d": file.private})
        return jws.serialize_compact(
            header, msgspec.json.encode(claims), private, algorithms=[_ALGORITHM]
        )

    def narrowed(self, grant: Grant, wanted: "NarrowerToken", now: int) -> tuple[str, Grant]:
        """Sign a token that can do no more than the one it is made from, and not for longer."""
        scopes = grant.scopes if wanted.scopes is None else wanted.scopes
        groups = grant.groups if wanted.groups is None else wanted.groups
        wider = [scope for scope in scopes if scope not in grant.scopes]
        if wider and "admin" not in grant.scopes:
            raise ForbiddenError(f"your token has no scope {wider[0][:40]}: ask for less")
        others = sorted(set(groups) - grant.groups)
        if others:
            raise ForbiddenError(f"your token is not in the group {others[0][:100]}: ask for less")
        if len(grant.ancestors) >= ANCESTORS_MAX:
            raise LimitError(f"a token descends from at most {ANCESTORS_MAX} others")
        bound = "" if wanted.filter is None else recent.read(wanted.filter).text
        bound = " AND ".join(f"({part})" for part in (grant.filter, bound) if part)
        if len(bound) > BOUND_LENGTH_MAX:
            raise LimitError(f"the filters of a token have at most {BOUND_LENGTH_MAX} characters")
        if bound and "admin" in scopes:
            raise InputError("a token with a filter can not have the scope admin")
        left_s = (grant.expires_us - now) / MICROSECONDS
        token = self.issue(
            grant.subject,
            scopes,
            groups,
            lifetime_s=min(wanted.lifetime_s, left_s),
            now=now,
            bound=bound,
            ancestors=(*grant.ancestors, grant.token_id),
            cast=grant.cast,
        )
        return token, self.check(token, now)

    def revoke_own(self, grant: Grant, token: str, now: int) -> None:
        """Revoke a token of the same subject; an operator's may revoke anybody's."""
        self._refresh()
        found, _ = self._verified(token)
        if found.subject != grant.subject and "admin" not in grant.scopes:
            raise ForbiddenError("this token is somebody else's")
        self.revoke(token, now)
        self._refresh()

    def check(self, token: str, now: int) -> Grant:
        """Give what a token grants; a token that is not valid is refused (401)."""
        self._refresh()
        found = self._checked.get(token)
        if found is None:
            found = self._verified(token)
            self._checked[token] = found
            if len(self._checked) > CHECKED_MAX:
                self._checked.popitem(last=False)
        else:
            self._checked.move_to_end(token)
        grant, issued_us = found
        if issued_us > now + self._skew_us:
            raise AuthError(
                f"this token was made in the future, at {format_instant(issued_us)}: "
                "set the clock of the machine that made it, or of this one"
            )
        self._refuse_ended(grant, now)
        return grant

    def ended(self, grants: Iterable[Grant], now: int) -> list[str | None]:
        """Give, for each grant, why it is no longer valid; None where it still is."""
        self._refresh()
        found: list[str | None] = []
        for grant in grants:
            try:
                self._refuse_ended(grant, now)
            except AuthError as error:
                found.append(str(error))
            else:
                gone = not grant.issuer and grant.key_id not in self._public
                found.append("this token's key is no longer valid" if gone else None)
        return found

    def rotate(self, now: int, *, at_once: bool = False) -> str:
        """Sign with a new key from now on; `at_once` ends every token of the old ones."""
        with self._changing() as file:
            needed = () if at_once else tuple(key for key in file.keys if key.until_us > now)
            if len(needed) >= KEYS_MAX:
                raise LimitError(
                    f"{KEYS_MAX} keys still have valid tokens: wait, or rotate with --at-once"
                )
            revoked = {name: until for name, until in file.revoked.items() if until > now}
            fresh = self._rotated(KeyFile(keys=needed, revoked=revoked))
            self._save(fresh)
        return fresh.keys[-1].id

    def revoke(self, token: str, now: int) -> str:
        """Refuse a token, given as itself or by its id, from now on; return the id."""
        if "." in token:
            self._refresh()
            grant, _ = self._verified(token)
            name, until = grant.token_id, grant.expires_us + self._skew_us + 1
        else:
            name, until = token, now + (LIFETIME_S_MAX * MICROSECONDS) + self._skew_us
        if not re.fullmatch(r"[0-9a-f]{24}", name):
            raise InputError("neither a token nor a token's id (24 characters of 0-9 and a-f)")
        with self._changing() as file:
            revoked = {other: end for other, end in file.revoked.items() if end > now}
            if len(revoked) >= REVOKED_MAX:
                raise LimitError(
                    f"{REVOKED_MAX} tokens are revoked: `roamcast token rotate --at-once` ends all"
                )
            revoked[name] = until
            self._save(msgspec.structs.replace(file, revoked=revoked))
        return name

    def _verified(self, token: str) -> tuple[Grant, int]:
        """Verify a signature and read the claims: what the token grants, and when it was issued."""
        if len(token) > TOKEN_LENGTH_MAX:
            raise AuthError(f"a token has at most {TOKEN_LENGTH_MAX} characters")
        try:
            signed = jws.deserialize_compact(
                token.encode("ascii"), self._signer, algorithms=[_ALGORITHM]
            )
            claims = msgspec.json.decode(signed.payload, type=_Claims)
        except (JoseError, msgspec.DecodeError, ValueError):
            raise AuthError(
                "this is not a token of this service: make one with `roamcast token`"
            ) from None
        scopes = tuple(scope for scope in SCOPES if scope in claims.scopes)
        expires = claims.exp * MICROSECONDS
        key_id = signed.headers()["kid"]
        groups = frozenset(claims.groups)
        grant = Grant(
            claims.sub,
            scopes,
            groups,
            expires,
            claims.jti,
            key_id,
            claims.filter,
            tuple(claims.ancestors),
            cast=claims.cast,
        )
        return grant, claims.iat * MICROSECONDS

    def _signer(self, signed: GuestProtocol) -> OKPKey:
        """Find the key a token names among ours; keys inside a header are never used."""
        key = self._public.get(str(signed.headers().get("kid")))
        if key is None:
            raise ValueError("a foreign key")
        return key

    def _refuse_ended(self, grant: Grant, now: int) -> None:
        if grant.expires_us + self._skew_us <= now:
            raise AuthError(
                f"this token expired at {format_instant(grant.expires_us)}: "
                "make another with `roamcast token`"
            )
        if self.has_revoked((grant.token_id, *grant.ancestors)):
            raise AuthError("this token was revoked: make another with `roamcast token`")

    def _refresh(self) -> None:
        """Read the file again if a command has changed it."""
        try:
            status = self._path.stat()
        except OSError as error:
            raise InputError(
                f"cannot read the key file: {error.strerror}", source=str(self._path)
            ) from None
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen == self._seen:
            return
        self._file = load_key_file(self._path)
        self._public = {key.id: OKPKey.import_key(_jwk(key)) for key in self._file.keys}
        self._checked.clear()
        self._seen = seen

    @contextmanager
    def _changing(self) -> Iterator[KeyFile]:
        """Lock the file against other writers, and give its content."""
        lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield load_key_file(self._path) if self._path.exists() else KeyFile()
        finally:
            os.close(lock)

    def _rotated(self, file: KeyFile) -> KeyFile:
        private = OKPKey.import_key(_pem(self._random(32)))
        written = private.as_dict(private=True)
        fresh = PublicKey(id=self._random(8).hex(), x=str(written["x"]), until_us=0)
        return KeyFile(keys=(*file.keys, fresh), private=str(written["d"]), revoked=file.revoked)

    def _save(self, file: KeyFile) -> None:
        save_key_file(file, self._path)
        self._seen = None


def _check_claims(
    subject: str, scopes: Iterable[str], groups: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Return scopes and groups in order and without repeats; refuse what a token may not hold."""
    asked: Sequence[str] = tuple(scopes)
    belongs = sorted(set(groups))
    unknown = [scope for scope in asked if scope not in SCOPES]
    if unknown or not asked:
        wrong = f"{unknown[0][:40]!r} is not a scope" if unknown else "a token needs a scope"
        raise InputError(f"{wrong}: choose from {', '.join(SCOPES)}")
    for name in (subject, *belongs):
        if not NAME.fullmatch(name):
            raise InputError(
                f"{name[:40]!r} cannot be a subject or group: use 1 to {SUBJECT_LENGTH_MAX} "
                "characters, without # and *"
            )
    if len(belongs) > GROUPS_MAX:
        raise LimitError(f"a token names at most {GROUPS_MAX} groups")
    return [scope for scope in SCOPES if scope in asked], belongs


def _jwk(key: PublicKey) -> dict[str, str | list[str]]:
    return {"kty": "OKP", "crv": _ALGORITHM, "x": key.x}


def _pem(seed: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.from_private_bytes(seed)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class Bucket:
    """Holds up to `burst` tokens and gains `rate_per_s`; whoever acts takes one."""

    __slots__ = ("_at", "_burst", "_held", "_rate_per_s")

    def __init__(self, rate_per_s: float, burst: int, now: int) -> None:
        assert rate_per_s > 0
        assert burst >= 1
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._held = float(burst)
        self._at = now

    def take(self, now: int, amount: float = 1.0) -> int:
        """Take tokens and give 0, or take nothing and give how many microseconds to wait."""
        self._gain(now)
        wait_us = self._until(min(amount, self._burst))
        if not wait_us:
            self._held -= amount  # one that is larger than the bucket leaves it in debt
        return wait_us

    def owe(self, now: int, amount: float = 1.0) -> int:
        """Take tokens, there or not, and give how many microseconds until nothing is owed."""
        self._gain(now)
        self._held -= amount
        return self._until(0.0)

    @property
    def owed(self) -> float:
        """How many tokens were taken that were not there."""
        return max(-self._held, 0.0)

    def _gain(self, now: int) -> None:
        gained = max(now - self._at, 0) * self._rate_per_s / MICROSECONDS
        self._held = min(self._held + gained, float(self._burst))
        self._at = max(self._at, now)

    def _until(self, wanted: float) -> int:
        """Give how many microseconds until so much is there."""
        lacking = wanted - self._held
        # A hair is forgiven: waiting exactly as long as was said must be enough.
        return int(lacking * MICROSECONDS / self._rate_per_s) + 1 if lacking > 1e-9 else 0


class Rates:
    """A bucket for each subject."""

    def __init__(
        self, rate_per_s: float, burst: int, *, what: str, subjects_max: int = SUBJECTS_MAX
    ) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._what = what
        self._subjects_max = subjects_max
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def take(self, subject: str, now: int, amount: int = 1) -> None:
        """Count so much more of this subject, or refuse it and say when to try again."""
        if amount > self._burst:
            raise LimitError(
                f"this may take {amount:,} {self._what}, and {self._burst:,} at once are allowed: "
                "ask for less"
            )
        wait_us = self._bucket(subject, now).take(now, amount)
        if wait_us:
            seconds = max(wait_us / MICROSECONDS, 0.1)
            raise _later(
                f"more than {self._rate_per_s:,.12g} {self._what} a second: "
                f"try again in {seconds:.1f} s",
                wait_us,
            )

    def owe(self, subject: str, now: int, amount: int) -> int:
        """Count what a subject does anyway; give how many microseconds until nothing is owed."""
        return self._bucket(subject, now).owe(now, amount)

    def _bucket(self, subject: str, now: int) -> Bucket:
        bucket = self._buckets.get(subject)
        if bucket is None:
            bucket = self._buckets[subject] = Bucket(self._rate_per_s, self._burst, now)
            if len(self._buckets) > self._subjects_max:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(subject)
        return bucket


class Connections:
    """Counts what is open, in all and for each subject."""

    def __init__(self, total_max: int, per_subject_max: int) -> None:
        self._total_max = total_max
        self._per_subject_max = per_subject_max
        self._open: Counter[str] = Counter()
        self.total = 0

    def open(self, subject: str) -> None:
        """Count a connection in, or refuse it."""
        if self.total >= self._total_max:
            raise _later(f"the service has {self._total_max} connections open: try again later")
        if self._open[subject] >= self._per_subject_max:
            raise _later(
                f"this token's subject has {self._per_subject_max} connections open: close one"
            )
        self._open[subject] += 1
        self.total += 1

    def close(self, subject: str) -> None:
        """Count it out."""
        assert self._open[subject] > 0, "closed more often than opened"
        self._open[subject] -= 1
        self.total -= 1
        if not self._open[subject]:
            del self._open[subject]


def _later(problem: str, retry_us: int = MICROSECONDS) -> RateError:
    error = RateError(problem)
    error.retry_us = retry_us
    return error
