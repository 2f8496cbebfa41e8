"""A person's key store: each vid is taken once, seeds outlive credentials, others may not read."""

import stat
from pathlib import Path

import pytest

from roamcast.errors import InputError
from roamcast.identity.credentials import Credential, sign_credential
from roamcast.identity.key_store import KeyStore, store_of
from roamcast.identity.sealing import VidSecrets, seal_payload

PRIVATE = bytes(range(32))


def pool(first: int, count: int, expires_us: int = 100) -> tuple[list[str], list[VidSecrets]]:
    own = [VidSecrets(number.to_bytes(32, "big")) for number in range(first, first + count)]
    credentials = [
        sign_credential(Credential(f"{n:024}@trust.example", one.public, expires_us), PRIVATE)
        for n, one in enumerate(own, first)
    ]
    return credentials, own


def test_a_vid_is_taken_once_also_by_two_programs_and_its_seed_stays(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ada.keys"
    first, second = KeyStore.open(path), KeyStore.open(path)
    first.add_pool(*pool(0, 3))
    taken = [store.take(50) for store in (first, second, first, second)]
    assert [None if one is None else one.vid[:24].lstrip("0") or "0" for one in taken] == [
        "0", "1", "2", None,
    ]  # fmt: skip
    assert second.left(50) == 0
    own = second.of(f"{1:024}@trust.example")
    assert own is not None
    sealed = seal_payload(b"hello", own.secrets.public, "c", own.vid)
    assert own.secrets.open(sealed, "c", own.vid) == b"hello"
    assert first.of("nobody@trust.example") is None
    first.close()
    second.close()


def test_an_expired_credential_is_not_taken(tmp_path: Path) -> None:
    store = KeyStore.open(tmp_path / "a.keys")
    store.add_pool(*pool(0, 2, expires_us=100))
    assert (store.left(99), store.left(100)) == (2, 0)
    assert store.take(100) is None
    store.close()


def test_a_use_finds_its_vid_again(tmp_path: Path) -> None:
    store = KeyStore.open(tmp_path / "a.keys")
    store.add_pool(*pool(0, 2))
    own = store.take(1, "phone 7")
    assert own == store.used_for("phone 7")
    assert store.used_for("phone 8") is None
    assert store.all_used() == [own]
    store.add_pool(*pool(5, 1), use="held")
    assert store.left(1) == 1
    store.close()


def test_seeds_are_bounded_and_the_oldest_give_way(tmp_path: Path) -> None:
    store = KeyStore.open(tmp_path / "a.keys", seeds_max=4)
    store.add_pool(*pool(0, 3))
    store.add_pool(*pool(3, 3))
    assert [store.of(f"{n:024}@trust.example") is not None for n in range(6)] == [
        False, False, True, True, True, True,
    ]  # fmt: skip
    store.close()


def test_entries_are_written_together_and_read_by_prefix(tmp_path: Path) -> None:
    store = KeyStore.open(tmp_path / "a.keys")
    store.write((("inbox/a", b"1"), ("inbox/b", b"2"), ("other", b"3")))
    store.write((("inbox/a", None), ("inbox/b", b"4")))
    store.close()
    again = KeyStore.open(tmp_path / "a.keys")
    assert again.load("inbox/") == {"inbox/b": b"4"}
    again.close()


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = store_of(tmp_path, "ada")
    KeyStore.open(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        KeyStore.open(path)
    path.write_bytes(b"no store at all, but a long enough text to be read as one" * 9)
    path.chmod(0o600)
    with pytest.raises(InputError, match="can not be opened"):
        KeyStore.open(path)
    assert store_of(tmp_path, "a/b") != store_of(tmp_path, "a b")
