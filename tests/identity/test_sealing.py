"""Sealed payloads: the vid's own key opens them, for their own cast only, and sizes are bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import InputError, LimitError
from roamcast.identity.credentials import SEALING_KEY_BYTES_MAX, VidKeys
from roamcast.identity.letters import LETTER_BYTES_MAX
from roamcast.identity.sealing import HYBRID_BYTES, STEP_BYTES, VidSecrets, seal_payload
from roamcast.identity.trusted.settings import SEALED_BYTES_MAX

VID = "A" * 24 + "@trust.example"


@given(st.binary(max_size=2_000), st.booleans())
def test_what_is_sealed_opens_with_the_vids_key(payload: bytes, hybrid: bool) -> None:
    secrets = VidSecrets(bytes(32), hybrid)
    sealed = seal_payload(payload, secrets.public, "c1", VID)
    assert payload == b"" or len(payload) < 4 or payload not in sealed
    assert secrets.open(sealed, "c1", VID) == payload


@pytest.mark.parametrize("hybrid", [False, True])
def test_another_vid_cast_or_byte_does_not_open(hybrid: bool) -> None:
    secrets, other = VidSecrets(bytes(32), hybrid), VidSecrets(bytes([1]) * 32, hybrid)
    sealed = seal_payload(b"secret", secrets.public, "c1", VID)
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for opener, data, cast, vid in (
        (other, sealed, "c1", VID),
        (secrets, sealed, "c2", VID),
        (secrets, sealed, "c1", "B" + VID[1:]),
        (secrets, changed, "c1", VID),
        (secrets, b"", "c1", VID),
        (secrets, sealed[:40], "c1", VID),
        (VidSecrets(bytes(32), not hybrid), sealed, "c1", VID),
    ):
        with pytest.raises(InputError, match="not sealed to this vid"):
            opener.open(data, cast, vid)


@pytest.mark.parametrize("hybrid", [False, True])
def test_lengths_tell_little_and_are_bounded(hybrid: bool) -> None:
    keys = VidSecrets(bytes(32), hybrid).public
    assert len(keys.sealing) == (HYBRID_BYTES if hybrid else 32)
    assert len(keys.sealing) <= SEALING_KEY_BYTES_MAX
    lengths = {len(seal_payload(b"x" * size, keys, "c", VID)) for size in range(STEP_BYTES - 4)}
    assert len(lengths) == 1
    assert len(seal_payload(bytes(LETTER_BYTES_MAX), keys, "c", VID)) <= SEALED_BYTES_MAX
    with pytest.raises(LimitError):
        seal_payload(bytes(LETTER_BYTES_MAX + 1), keys, "c", VID)
    with pytest.raises(LimitError):
        VidSecrets(bytes(32), hybrid).open(bytes(SEALED_BYTES_MAX + 1), "c", VID)


def test_keys_of_another_length_are_refused() -> None:
    for length in (33, 1_215):
        with pytest.raises(InputError):
            seal_payload(b"", VidKeys(bytes(32), bytes(length)), "c", VID)
