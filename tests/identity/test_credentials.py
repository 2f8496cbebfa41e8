"""Credentials: forged, foreign, expired, stolen and malformed ones are refused by name."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roamcast.errors import AuthError
from roamcast.identity.credentials import (
    CREDENTIAL_LENGTH_MAX,
    SEALING_KEY_BYTES_MAX,
    Credential,
    VidKeys,
    check_credential,
    check_registration,
    is_credential,
    public_key,
    sign_credential,
    sign_registration,
    vid_of,
)

NODE = "trust.example"
VID = "A" * 24 + "@" + NODE
NODE_KEY, OWN_KEY, OTHER_KEY = (bytes([number]) * 32 for number in (1, 2, 3))
NODES = {NODE: public_key(NODE_KEY)}
CREDENTIAL = Credential(VID, VidKeys(public_key(OWN_KEY), bytes(32)), 1_000)
TEXT = sign_credential(CREDENTIAL, NODE_KEY)
NONCE, HERE = bytes(32), "here.example:8080"


def test_what_the_trusted_node_signed_is_accepted_until_it_expires() -> None:
    assert is_credential(TEXT)
    assert vid_of(TEXT) == VID
    assert check_credential(TEXT, NODES, 999, 0) == CREDENTIAL
    assert check_credential(TEXT, NODES, 1_059, 60) == CREDENTIAL
    with pytest.raises(AuthError, match=r"^expired"):
        check_credential(TEXT, NODES, 1_060, 60)


def test_the_largest_credential_fits() -> None:
    vid = "A" * 24 + "@" + "a" * 103
    keys = VidKeys(public_key(OWN_KEY), bytes(SEALING_KEY_BYTES_MAX))
    text = sign_credential(Credential(vid, keys, 2**62), NODE_KEY)
    assert len(text) <= CREDENTIAL_LENGTH_MAX
    assert vid_of(text) == vid


def test_forged_and_foreign_credentials_are_refused() -> None:
    with pytest.raises(AuthError, match=r"^forged"):
        check_credential(sign_credential(CREDENTIAL, OTHER_KEY), NODES, 0, 0)
    elsewhere = replace(CREDENTIAL, vid="A" * 24 + "@other.example")
    with pytest.raises(AuthError, match=r"^foreign"):
        check_credential(sign_credential(elsewhere, NODE_KEY), NODES, 0, 0)
    with pytest.raises(AuthError, match=r"^foreign"):
        check_credential(TEXT, {}, 0, 0)


@pytest.mark.parametrize(
    "text", ["", "vid1.", "vid1.AAAA", "vid1.ä", "eyJ.x.y", "vid1." + "A" * 3_000, TEXT + "!"]
)
def test_malformed_credentials_are_refused(text: str) -> None:
    with pytest.raises(AuthError, match=r"^malformed"):
        check_credential(text, NODES, 0, 0)


@given(st.integers(0, len(TEXT) - 6), st.integers(1, 255))
def test_no_changed_byte_is_accepted(at: int, by: int) -> None:
    data = bytearray(base64.urlsafe_b64decode(TEXT[5:] + "=" * (-len(TEXT[5:]) % 4)))
    data[at % len(data)] ^= by
    changed = "vid1." + base64.urlsafe_b64encode(bytes(data)).decode().rstrip("=")
    with pytest.raises(AuthError):
        check_credential(changed, NODES, 0, 0)


def test_a_registration_serves_one_service_nonce_and_credential() -> None:
    signature = sign_registration(TEXT, NONCE, HERE, OWN_KEY)
    check_registration(TEXT, CREDENTIAL, NONCE, HERE, signature)
    other = sign_credential(replace(CREDENTIAL, expires_us=2_000), NODE_KEY)
    wrong = (
        (TEXT, bytes([1]) * 32, HERE, signature),
        (TEXT, NONCE, "evil.example", signature),
        (other, NONCE, HERE, signature),
        (TEXT, NONCE, HERE, sign_registration(TEXT, NONCE, HERE, OTHER_KEY)),
        (TEXT, NONCE, HERE, b""),
    )
    for text, nonce, audience, shown in wrong:
        with pytest.raises(AuthError, match=r"^stolen"):
            check_registration(text, CREDENTIAL, nonce, audience, shown)
