"""Tokens, and the Ed25519 keys of the service that sign them (decision 0071).

A token is a JWT: a subject, scopes, groups for privacy rules, an expiry and an id. The key file is
readable by its owner only and replaced as a whole. `roamcast token` changes it under a lock while
the service runs; the service reads it again at the next check. Rotation signs with a new key and
retains the old one's public half until its last token has expired. A revoked token is refused by
its id.
"""

import fcntl
import os
import re
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import GuestProtocol, OKPKey

from roamcast import files
from roamcast.errors import AuthError, ForbiddenError, InputError, LimitError
from roamcast.live.config.settings import DAY_S, KEY_FILE
from roamcast.model.time import MICROSECONDS, format_instant

Scope = Literal["read", "publish", "subscribe", "cast", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

TOKEN_LENGTH_MAX: Final = 8_192
SUBJECT_LENGTH_MAX: Final = 128
GROUPS_MAX: Final = 64
LIFETIME_S_MAX: Final = 366 * DAY_S
REVOKED_MAX: Final = 100_000
KEYS_MAX: Final = 64
FILE_BYTES_MAX: Final = 32 << 20
CHECKED_MAX: Final = 10_000
"""Tokens whose verified signatures are cached."""

_ALGORITHM: Final = "Ed25519"  # RFC 9864; the older name EdDSA leaves the curve open
_NAME: Final = re.compile(r"[^\s#*\x00-\x1f\x7f][^#*\x00-\x1f\x7f]{0,127}")
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

    def require(self, scope: Scope) -> None:
        """Refuse (403) unless the token has this scope; `admin` has them all."""
        if scope not in self.scopes and "admin" not in self.scopes:
            had = ", ".join(self.scopes) or "none"
            raise ForbiddenError(
                f"this needs the scope {scope}, the token has {had}: "
                f"make one with `roamcast token --scope {scope}`"
            )


class _Claims(msgspec.Struct, frozen=True):
    sub: str
    exp: int
    iat: int
    jti: str
    scopes: list[str]
    groups: list[str] = []


class PublicKey(msgspec.Struct, frozen=True):
    """A key's public half (base64url), and when the last token it signed expires."""

    id: str
    x: str
    until_us: int


class KeyFile(msgspec.Struct, frozen=True):
    """The key file: all keys, the last of which signs; its private half; revoked tokens by id."""

    keys: tuple[PublicKey, ...] = ()
    private: str = ""
    revoked: Mapping[str, int] = {}


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
    ) -> str:
        """Sign a token."""
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
                gone = grant.key_id not in self._public
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
        grant = Grant(claims.sub, scopes, groups, expires, claims.jti, key_id)
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
        if grant.token_id in self._file.revoked or grant.token_id in self._refused:
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


def save_key_file(file: KeyFile, path: Path) -> None:
    """Replace the file as a whole, readable by its owner only, and synced."""
    text = msgspec.json.format(msgspec.json.encode(file))
    files.write_whole(path, text, mode=files.OWNER_ONLY)


def load_key_file(path: Path) -> KeyFile:
    """Read the file; one that others may read is refused, because its key may have leaked."""
    try:
        status = path.stat()
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise InputError(
                "others may read this key file: chmod 600 it, then `roamcast token rotate`",
                source=str(path),
            )
        if status.st_size > FILE_BYTES_MAX:
            raise LimitError(f"larger than {FILE_BYTES_MAX} bytes", source=str(path))
        file = msgspec.json.decode(path.read_bytes(), type=KeyFile)
    except OSError as error:
        raise InputError(f"cannot read the key file: {error.strerror}", source=str(path)) from None
    except msgspec.DecodeError as error:
        raise InputError(f"not a key file: {error}", source=str(path)) from None
    if not file.keys or not file.private:
        raise InputError("not a key file: it has no key", source=str(path))
    return file


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
        if not _NAME.fullmatch(name):
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
