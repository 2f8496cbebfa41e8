"""Revoked tokens: stored once, refused after a restart and on every replica, bounded in number."""

import msgspec
import pytest

from roamcast.identity import revocations as module
from roamcast.identity.revocations import PREFIX, Revocations, RevokeTokens, TokenRevoked
from roamcast.model.machine import Entry, Store

NOW = 1_000


def test_a_revocation_is_stored_once_and_not_after_it_has_expired() -> None:
    part = Revocations()
    given = RevokeTokens((("a", NOW + 5), ("over", NOW)))
    (store,) = part.receive(given, NOW)
    assert store == Store(0, ((PREFIX + "a", msgspec.msgpack.encode(NOW + 5)),))
    assert part.receive(given, NOW) == []


def test_what_was_on_disk_is_refused_again_and_what_expired_is_deleted() -> None:
    part = Revocations()
    encode = msgspec.msgpack.encode
    stored = {PREFIX + "a": encode(NOW + 1), PREFIX + "old": encode(NOW)}
    assert part.restore(stored, NOW) == [
        TokenRevoked("a", NOW + 1),
        Store(0, ((PREFIX + "old", None),)),
    ]


def test_what_a_replica_revoked_is_refused_here() -> None:
    entries = (Entry(PREFIX + "a", msgspec.msgpack.encode(NOW), 1), Entry(PREFIX + "b", None, 2))
    assert Revocations().adopt(entries, NOW) == [TokenRevoked("a", NOW)]


def test_ids_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REVOCATIONS_MAX", 3)
    part = Revocations()
    part.receive(RevokeTokens(tuple((f"t{number}", NOW + 9) for number in range(5))), NOW)
    assert part.occupancy() == {"ids": (3, 3)}
