"""Tokens: only what this service signed, while it lasts, and nothing that anybody tampered with."""

import base64
import json
import multiprocessing
import os
import random
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import OctKey, OKPKey

from roamcast.errors import AuthError, InputError, LimitError
from roamcast.live.auth import admission as module
from roamcast.live.auth.admission import (
    GROUPS_MAX,
    KEYS_MAX,
    LIFETIME_S_MAX,
    SCOPES,
    TOKEN_LENGTH_MAX,
    Grant,
    TokenKeys,
    load_key_file,
    save_key_file,
)

NOW = 1_794_800_000_000_000
SECOND = 1_000_000
YEAR = 366 * 86_400 * SECOND


@pytest.fixture
def keys(tmp_path: Path) -> TokenKeys:
    return TokenKeys.open(tmp_path, random_bytes=random.Random(1).randbytes)


def token_of(keys: TokenKeys, **said: Any) -> str:
    wishes = {"subject": "ada", "scopes": ["read"], "lifetime_s": 600, "now": NOW}
    return keys.issue(**{**wishes, **said})


def refused(keys: TokenKeys, token: str, now: int = NOW) -> str:
    with pytest.raises(AuthError) as caught:
        keys.check(token, now)
    assert caught.value.status == 401
    assert token not in str(caught.value)
    return str(caught.value)


def part(document: object) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(document)).decode().rstrip("=")


def opened(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return found


def test_a_token_grants_what_it_was_made_for(keys: TokenKeys) -> None:
    token = token_of(keys, scopes=["subscribe", "read", "read"], groups=["staff", "b35"])
    grant = keys.check(token, NOW)
    assert grant.subject == "ada"
    assert grant.scopes == ("read", "subscribe")
    assert grant.groups == frozenset({"staff", "b35"})
    assert grant.expires_us == NOW + 600 * SECOND
    assert keys.check(token, NOW) == grant


def test_a_missing_scope_is_refused_with_403_and_admin_has_them_all() -> None:
    grant = Grant("ada", ("read",), frozenset(), NOW, "a" * 24, "k")
    grant.require("read")
    with pytest.raises(
        AuthError, match=r"needs the scope cast, the token has read: .* --scope cast"
    ) as caught:
        grant.require("cast")
    assert caught.value.status == 403
    for scope in SCOPES:
        msgspec.structs.replace(grant, scopes=("admin",)).require(scope)


@pytest.mark.limit("limits.clock_skew_s_max")
def test_a_token_lasts_to_its_last_moment_and_the_allowed_skew(keys: TokenKeys) -> None:
    token = token_of(keys, lifetime_s=10)
    assert keys.check(token, NOW + 70 * SECOND - 1)
    assert "expired at 2026-" in refused(keys, token, NOW + 70 * SECOND)


def test_clocks_a_year_off_are_refused_and_told_so(keys: TokenKeys) -> None:
    assert "made in the future" in refused(keys, token_of(keys, now=NOW + YEAR))
    assert "expired" in refused(keys, token_of(keys, now=NOW - YEAR))
    assert keys.check(token_of(keys, now=NOW + 60 * SECOND), NOW)
    assert "future" in refused(keys, token_of(keys, now=NOW + 61 * SECOND))


def test_a_token_of_another_services_keys_is_refused(keys: TokenKeys, tmp_path: Path) -> None:
    other = TokenKeys.open(tmp_path / "other")
    assert "not a token of this service" in refused(keys, token_of(other))
    header, claims, signature = token_of(other).split(".")
    named = {**opened(header), "kid": load_key_file(tmp_path / "keys.json").keys[-1].id}
    refused(keys, f"{part(named)}.{claims}.{signature}")


def test_no_other_algorithm_is_taken_whatever_the_header_says(
    keys: TokenKeys, tmp_path: Path
) -> None:
    header, claims, _ = token_of(keys).split(".")
    ours = load_key_file(tmp_path / "keys.json").keys[-1]
    for alg in ("none", "None", "NONE", ""):
        refused(keys, f"{part({**opened(header), 'alg': alg})}.{claims}.")
    public = base64.urlsafe_b64decode(ours.x + "=")
    shared = OctKey.import_key(public)  # the classic confusion: the public key as an HMAC secret
    forged = jws.serialize_compact(
        {"alg": "HS256", "kid": ours.id}, msgspec.json.encode(opened(claims)), shared
    )
    refused(keys, forged)
    refused(keys, f"{part({'kid': ours.id})}.{claims}.")
    refused(keys, f"{part([])}.{claims}.")


def test_a_key_in_the_header_is_never_used(keys: TokenKeys, tmp_path: Path) -> None:
    _, claims, _ = token_of(keys).split(".")
    mine = OKPKey.generate_key("Ed25519")
    ours = load_key_file(tmp_path / "keys.json").keys[-1]
    header = {"alg": "Ed25519", "kid": ours.id, "jwk": mine.as_dict(private=False)}
    refused(
        keys,
        jws.serialize_compact(
            header, msgspec.json.encode(opened(claims)), mine, algorithms=["Ed25519"]
        ),
    )


@settings(max_examples=60)
@given(st.data())
def test_every_changed_character_breaks_a_token(data: st.DataObject) -> None:
    token, keys = _known()
    place = data.draw(st.integers(0, len(token) - 1))
    letters = st.characters(codec="utf-8") | st.sampled_from("ABCdef019-_.= ")
    changed = token[:place] + data.draw(letters) + token[place + 1 :]
    # base64's last character may carry unused bits: the same bytes are the same token
    if _bytes_of(changed) != _bytes_of(token):
        refused(keys, changed)


@settings(max_examples=60)
@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda b: b.decode("latin-1")))
def test_nonsense_is_refused_and_never_crashes(nonsense: str) -> None:
    _, keys = _known()
    with pytest.raises(AuthError):
        keys.check(nonsense, NOW)
    with pytest.raises(AuthError):
        keys.check(f"{nonsense}.{nonsense}.{nonsense}", NOW)


@given(
    st.dictionaries(
        st.sampled_from(["sub", "exp", "iat", "jti", "scopes", "groups"]),
        st.none() | st.booleans() | st.text(max_size=3) | st.floats() | st.lists(st.integers()),
        min_size=1,
    )
)
def test_claims_of_a_wrong_type_are_refused_even_when_signed(wrong: dict[str, Any]) -> None:
    token, keys = _known()
    claims = {**opened(token.split(".")[1]), **wrong}
    header = {"alg": "Ed25519", "kid": keys._file.keys[-1].id}
    private = OKPKey.import_key(
        {"kty": "OKP", "crv": "Ed25519", "x": keys._file.keys[-1].x, "d": keys._file.private}
    )
    signed = jws.serialize_compact(
        header, json.dumps(claims).encode(), private, algorithms=["Ed25519"]
    )
    try:
        grant = keys.check(signed, NOW)
    except AuthError:
        return
    assert isinstance(grant.subject, str)
    assert set(grant.scopes) <= set(SCOPES)


_KNOWN: list[tuple[str, TokenKeys]] = []


def _known() -> tuple[str, TokenKeys]:
    """One token and its keys for properties that change neither."""
    if not _KNOWN:
        import tempfile

        keys = TokenKeys.open(Path(tempfile.mkdtemp()), random_bytes=random.Random(2).randbytes)
        _KNOWN.append((token_of(keys), keys))
    return _KNOWN[0]


def _bytes_of(token: str) -> list[bytes] | None:
    try:
        return [
            base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            for text in token.split(".")
        ]
    except ValueError:
        return None


def test_a_token_at_the_length_limit_is_read_and_a_longer_one_refused_unread(
    keys: TokenKeys,
) -> None:
    assert "not a token of this service" in refused(keys, "a" * TOKEN_LENGTH_MAX)
    assert "at most 8192 characters" in refused(keys, "a" * (TOKEN_LENGTH_MAX + 1))


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"scopes": ["write"]}, "'write' is not a scope: choose from read, publish"),
        ({"scopes": []}, "a token needs a scope"),
        ({"subject": ""}, "cannot be a subject"),
        ({"subject": "a#b"}, "without # and"),
        ({"subject": "*"}, "without # and"),
        ({"subject": "a\nb"}, "cannot be a subject"),
        ({"subject": "a" * 129}, "1 to 128 characters"),
        ({"groups": ["*"]}, "cannot be a subject or group"),
        ({"groups": [f"g{n}" for n in range(GROUPS_MAX + 1)]}, "at most 64 groups"),
        ({"lifetime_s": 0}, "lives more than 0"),
        ({"lifetime_s": LIFETIME_S_MAX + 1}, "at most 31622400 seconds"),
        ({"lifetime_s": float("nan")}, "lives more than 0"),
    ],
)
def test_what_no_token_may_say_is_refused(
    keys: TokenKeys, said: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        token_of(keys, **said)


@pytest.mark.limit("token.groups_max", "token.lifetime_s_max")
def test_what_is_at_the_limits_is_issued_and_one_past_them_is_not(keys: TokenKeys) -> None:
    groups = [f"{n:02d}" + "g" * 60 for n in range(GROUPS_MAX)]
    token = token_of(keys, subject="é" * 128, groups=groups, lifetime_s=LIFETIME_S_MAX)
    assert len(keys.check(token, NOW).groups) == GROUPS_MAX
    with pytest.raises(InputError, match="at most 64 groups"):
        token_of(keys, groups=[*groups, "more"])
    with pytest.raises(InputError, match="at most 31622400 seconds"):
        token_of(keys, lifetime_s=LIFETIME_S_MAX + 1)


def test_rotation_keeps_old_tokens_until_they_expire(keys: TokenKeys, tmp_path: Path) -> None:
    old = token_of(keys, lifetime_s=1_000)
    first = load_key_file(tmp_path / "keys.json")
    keys.rotate(NOW)
    new = token_of(keys)
    assert new.split(".")[0] != old.split(".")[0]
    assert keys.check(old, NOW).subject == keys.check(new, NOW).subject == "ada"
    rotated = load_key_file(tmp_path / "keys.json")
    assert rotated.private != first.private
    assert len(rotated.keys) == 2
    keys.rotate(NOW + 1_001 * SECOND)  # by then the first key's tokens are all over
    assert [key.id for key in load_key_file(tmp_path / "keys.json").keys][:1] != [first.keys[0].id]


def test_rotating_at_once_ends_every_token_and_what_it_opened(keys: TokenKeys) -> None:
    token = token_of(keys)
    grant = keys.check(token, NOW)
    assert keys.ended([grant], NOW) == [None]
    keys.rotate(NOW, at_once=True)
    assert "not a token of this service" in refused(keys, token)
    assert keys.ended([grant], NOW) == ["this token's key is no longer valid"]


def test_keys_that_still_have_tokens_are_bounded(keys: TokenKeys) -> None:
    for _ in range(KEYS_MAX - 1):
        token_of(keys)
        keys.rotate(NOW)
    token_of(keys)
    with pytest.raises(LimitError, match="64 keys still have valid tokens"):
        keys.rotate(NOW)
    keys.rotate(NOW, at_once=True)


def test_a_revoked_token_is_refused_by_itself_or_its_id_also_by_a_running_service(
    tmp_path: Path,
) -> None:
    service, command = TokenKeys.open(tmp_path), TokenKeys.open(tmp_path)
    one, two, three = (token_of(command) for _ in range(3))
    grants = [service.check(token, NOW) for token in (one, two, three)]
    command.revoke(one, NOW)
    command.revoke(grants[1].token_id, NOW)
    assert "was revoked" in refused(service, one)
    assert "was revoked" in refused(service, two)
    assert service.check(three, NOW) == grants[2]
    reasons = service.ended(grants, NOW)
    assert [reason and reason.partition(":")[0] for reason in reasons] == [
        "this token was revoked",
        "this token was revoked",
        None,
    ]
    assert "expired" in str(service.ended(grants, NOW + 10**12)[2])


def test_revocations_are_forgotten_when_their_tokens_are_over(
    keys: TokenKeys, tmp_path: Path
) -> None:
    keys.revoke(token_of(keys), NOW)
    later = NOW + YEAR
    keys.revoke(token_of(keys, now=later), later)
    assert len(load_key_file(tmp_path / "keys.json").revoked) == 1


def test_revocations_are_bounded(keys: TokenKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REVOKED_MAX", 2)
    for _ in range(2):
        keys.revoke(token_of(keys), NOW)
    with pytest.raises(LimitError, match="rotate --at-once"):
        keys.revoke(token_of(keys), NOW)
    for nonsense in ("", "x", "a" * 25):
        with pytest.raises(InputError, match="neither a token"):
            keys.revoke(nonsense, NOW)


def test_remembered_tokens_are_bounded_and_still_expire(
    keys: TokenKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKED_MAX", 2)
    tokens = [token_of(keys, subject=name) for name in "abc"]
    for token in tokens:
        keys.check(token, NOW)
    assert len(keys._checked) == 2
    for token in tokens:
        assert "expired" in refused(keys, token, NOW + YEAR)


def test_the_key_file_is_for_its_owner_only(keys: TokenKeys, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600 it"):
        TokenKeys.open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"keys": 3}'])
def test_a_file_that_holds_no_keys_is_told_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InputError, match=r"keys\.json: not a key file"):
        TokenKeys.open(tmp_path)


def test_a_key_file_that_vanished_is_told_so(keys: TokenKeys, tmp_path: Path) -> None:
    token = token_of(keys)
    (tmp_path / "keys.json").unlink()
    with pytest.raises(InputError, match="cannot read the key file"):
        keys.check(token, NOW)


def test_a_file_written_and_read_is_the_same(keys: TokenKeys, tmp_path: Path) -> None:
    file = load_key_file(tmp_path / "keys.json")
    save_key_file(file, tmp_path / "copy.json")
    assert load_key_file(tmp_path / "copy.json") == file
    private = base64.urlsafe_b64decode(file.private + "=")
    public = Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    assert base64.urlsafe_b64decode(file.keys[0].x + "=") == public


def _revoke_some(folder: str, first: int) -> None:
    keys = TokenKeys.open(Path(folder))
    for number in range(first, first + 10):
        keys.revoke(f"{number:024x}", NOW)


@pytest.mark.slow
def test_two_commands_at_once_lose_no_change(tmp_path: Path) -> None:
    TokenKeys.open(tmp_path)
    spawn = multiprocessing.get_context("spawn")
    pair = [spawn.Process(target=_revoke_some, args=(str(tmp_path), n * 10)) for n in range(2)]
    for process in pair:
        process.start()
    for process in pair:
        process.join(120)
        assert process.exitcode == os.EX_OK
    assert len(load_key_file(tmp_path / "keys.json").revoked) == 20
