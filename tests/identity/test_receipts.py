"""Receipts: signed by the access node over all that they say, and told in words."""

from typing import Any

import pytest
from msgspec.structs import replace

from roamcast.identity.credentials import public_key
from roamcast.identity.letters import (
    LETTER_BYTES_MAX,
    NODE_LENGTH_MAX,
    REASON_LENGTH_MAX,
    TEXT_LENGTH_MAX,
    Letter,
    decode_letter,
    encode_letter,
)
from roamcast.identity.receipts import (
    FORGED,
    UNSIGNED,
    ReceiptKey,
    doubt_of,
    explained,
    sign_receipt,
)
from roamcast.model.casts import PAYLOAD_BYTES_MAX
from roamcast.model.time import parse_instant

OWN = ReceiptKey("hq", bytes([7]) * 32)
KNOWN = {public_key(OWN.private): "https://maps.example"}
VID = "A" * 24 + "@trust.example"
TIMES = "INTERVAL('2026-11-10T15:00:00Z', '2026-11-10T17:00:00Z')"
LETTER = Letter(b"hello", "text/plain", 1, parse_instant("2026-12-01T00:00:00Z"), "place = 'hq/3'")


def test_a_receipt_of_a_node_that_was_met_leaves_no_doubt() -> None:
    signed = sign_receipt(LETTER, "c1", VID, "ann", OWN)
    assert doubt_of(decode_letter(encode_letter(signed)), "c1", VID, "ann", KNOWN) == ""
    assert doubt_of(LETTER, "c1", VID, "ann", KNOWN) == UNSIGNED
    stranger = sign_receipt(LETTER, "c1", VID, "ann", ReceiptKey("hq", bytes(32)))
    assert doubt_of(stranger, "c1", VID, "ann", KNOWN) == "signed by 'hq', a node not met before"


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": b"other"},
        {"media_type": "text/html"},
        {"sent_us": 2},
        {"expires_us": 3},
        {"reason": "place = 'hq/4'"},
        {"node": "hq2"},
        {"node_key": bytes(31)},
        {"node_key": public_key(bytes(32))},
        {"signature": bytes(64)},
    ],
)
def test_whatever_is_changed_is_seen(changes: dict[str, Any]) -> None:
    signed = replace(sign_receipt(LETTER, "c1", VID, "ann", OWN), **changes)
    assert doubt_of(signed, "c1", VID, "ann", KNOWN) == FORGED


def test_a_receipt_holds_for_its_own_cast_vid_and_sender_alone() -> None:
    signed = sign_receipt(LETTER, "c1", VID, "ann", OWN)
    for others in (("c2", VID, "ann"), ("c1", "B" + VID[1:], "ann"), ("c1", VID, "bob")):
        assert doubt_of(signed, *others, KNOWN) == FORGED


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (
            f"within(place, 'hq/3') AND overlaps(time, {TIMES})",
            "was within hq/3 between 2026-11-10",
        ),
        (f"within(place, 'hq/3') AND contains(time, {TIMES})", "15:00 and 2026-11-10 17:00 UTC"),
        (f"within(place, 'hq/3') AND before(time, {TIMES})", "at or before 2026-11-10 14:59 UTC"),
        (
            f"within(place, 'hq/3') AND NOT after(time, {TIMES})",
            "at or before 2026-11-10 17:00 UTC",
        ),
        (f"within(place, 'hq/3') AND after(time, {TIMES})", "at or after 2026-11-10 17:00 UTC"),
        ("within(place, 'hq/3')", "was within hq/3 (filter:"),
        ("within(place, 'a') OR within(place, 'b')", "was within a or b (filter:"),
        ("badge = 1", "satisfied: badge = 1"),
        ("within(place, 'cut off", "satisfied: within(place, 'cut off"),
    ],
)
def test_a_receipt_says_where_and_when_in_words(wanted: str, told: str) -> None:
    text = explained(replace(LETTER, reason=wanted))
    assert text.startswith("a pseudonym of yours ")
    assert told in text
    assert text.endswith("; this message expires on 2026-12-01 00:00 UTC")
    assert explained(Letter(b"")) == ""


def test_the_largest_letter_with_its_receipt_is_within_the_bound() -> None:
    large = Letter(
        bytes(PAYLOAD_BYTES_MAX),
        "t" * TEXT_LENGTH_MAX,
        2**62,
        2**62,
        "\U0001f600" * REASON_LENGTH_MAX,
    )
    signed = sign_receipt(
        large, "c" * 64, VID, "s", ReceiptKey("\U0001f600" * NODE_LENGTH_MAX, bytes(32))
    )
    assert len(encode_letter(signed)) <= LETTER_BYTES_MAX
    assert decode_letter(encode_letter(signed)) == signed
