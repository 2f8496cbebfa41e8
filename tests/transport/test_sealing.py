"""Only who has a view class's key reads its group messages, and no nonce comes twice."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from roamcast.channels.client.link_messages import KEY_BYTES
from roamcast.transport.sealing import (
    NONCE_BYTES,
    SEAL_BYTES,
    Seal,
    class_key,
    nonces,
    seal_of_client,
    seals_of_classes,
)

SECRET = bytes(range(32))
MARK = b"mark"
names = st.text(max_size=40)


@given(st.binary(max_size=2_000), names, names)
def test_a_client_opens_what_its_own_class_was_sent(
    frame: bytes, view_class: str, group: str
) -> None:
    sealed = seals_of_classes(SECRET, MARK)(view_class).seal(group, frame)
    client = seal_of_client(class_key(SECRET, view_class), b"else")("any")
    assert client.open(group, sealed) == frame
    assert len(sealed) == len(frame) + SEAL_BYTES


@given(st.binary(max_size=200), names, names, names, names)
def test_another_class_group_or_service_opens_nothing(
    frame: bytes, view_class: str, other_class: str, group: str, other_group: str
) -> None:
    sealed = seals_of_classes(SECRET, MARK)(view_class).seal(group, frame)
    for secret, one, by in (
        (SECRET, other_class, group),
        (SECRET, view_class, other_group),
        (bytes(32), view_class, group),
    ):
        if (secret, one, by) != (SECRET, view_class, group):
            assert seals_of_classes(secret, MARK)(one).open(by, sealed) is None


@given(st.binary(max_size=100), st.data())
def test_one_changed_byte_is_noticed(frame: bytes, data: st.DataObject) -> None:
    seal = Seal(bytes(KEY_BYTES), nonces(MARK))
    sealed = bytearray(seal.seal("g", frame))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= data.draw(st.integers(1, 255))
    assert seal.open("g", bytes(sealed)) is None


@given(st.binary(max_size=SEAL_BYTES - 1))
def test_what_is_too_short_for_a_seal_is_not_opened(data: bytes) -> None:
    assert Seal(bytes(KEY_BYTES), nonces(MARK)).open("g", data) is None


def test_classes_share_their_nonces_so_that_a_forgotten_one_repeats_none() -> None:
    seal_of = seals_of_classes(SECRET, MARK)
    seen = [seal_of(f"class {number % 7}").seal("g", b"")[:NONCE_BYTES] for number in range(1_000)]
    assert len(set(seen)) == 1_000
    assert all(nonce.startswith(MARK) for nonce in seen)
    assert len(set(islice(nonces(MARK), 1_000))) == 1_000


def test_a_groups_digest_says_nothing_without_the_key() -> None:
    seal_of = seals_of_classes(SECRET, MARK)
    digests = {seal_of(name).digest_of("map/all/1") for name in ("", "guest", "staff")}
    assert len(digests) == 3
    assert {len(digest) for digest in digests} == {16}
    again = seals_of_classes(SECRET, b"5678")
    assert again("").digest_of("map/all/1") == seal_of("").digest_of("map/all/1")
