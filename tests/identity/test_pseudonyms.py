"""Virtual identities: only the key holder resolves them, nobody links them, all can end."""

import base64
import os
import random
import stat
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roamcast.errors import InputError, LimitError
from roamcast.identity.keys import EPOCH_MAX, TrustedKeys, load_keys, new_keys, save_keys
from roamcast.identity.pseudonyms import (
    OPAQUE_LENGTH,
    REGISTER,
    forget,
    new_handles,
    open_few,
    open_vids,
    resolve,
    seal,
    trusted_node_of,
    vids_of,
)
from roamcast.model.contexts import VID_LENGTH_MAX

NODE = "trusted.example.org"


def world(people: list[str], seed: int = 1) -> tuple[TrustedKeys, pa.Table, random.Random]:
    generator = random.Random(seed)
    keys = new_keys(NODE, generator.randbytes)
    handles = new_handles(len(people), generator.randbytes)
    return keys, pa.table([pa.array(people, pa.string()), handles], schema=REGISTER), generator


def sealed(
    keys: TrustedKeys, register: pa.Table, rows: list[int], generator: random.Random
) -> pa.Array:
    handles = register["handle"].combine_chunks().take(pa.array(rows, pa.int64()))
    return seal(handles, keys, generator.randbytes)


@given(st.lists(st.integers(0, 4), max_size=50), st.integers(0, 2**32))
def test_every_vid_resolves_to_its_person_and_to_nobody_without_the_key(
    rows: list[int], seed: int
) -> None:
    people = ["ann", "bob", "çé", "d" * 256, "e"]
    keys, register, generator = world(people, seed)
    vids = sealed(keys, register, rows, generator)
    assert resolve(vids, keys, register).to_pylist() == [people[row] for row in rows]
    stranger = TrustedKeys(NODE, {1: generator.randbytes(32)}, 1)
    assert resolve(vids, stranger, register).null_count == len(rows)


@given(st.integers(0, 2**32))
def test_no_two_vids_of_one_person_share_anything_observable(seed: int) -> None:
    keys, register, generator = world(["ann", "bob"], seed)
    mine = sealed(keys, register, [0] * 64, generator).to_pylist()
    theirs = sealed(keys, register, [1] * 64, generator).to_pylist()
    assert len(set(mine + theirs)) == 128
    assert {len(vid) for vid in mine + theirs} == {OPAQUE_LENGTH + 1 + len(NODE)}
    # The only constant part is the epoch (and the name), and it is everybody's.
    assert {vid[:2] for vid in mine} == {vid[:2] for vid in theirs} == {"AA"}
    for start in range(4, OPAQUE_LENGTH - 6):
        pieces = Counter(vid[start : start + 6] for vid in mine)
        assert max(pieces.values()) == 1, "six characters (36 bits) in common are no accident"


def test_the_bits_of_one_persons_vids_look_like_a_strangers() -> None:
    """Statistical smoke: each bit is a fair coin, and distances do not tell people apart."""
    keys, register, generator = world(["ann", "bob"])

    def bits(row: int) -> np.ndarray:
        vids = sealed(keys, register, [row] * 4000, generator).to_pylist()
        raw = b"".join(base64.urlsafe_b64decode(vid[:OPAQUE_LENGTH])[2:] for vid in vids)
        return np.unpackbits(np.frombuffer(raw, np.uint8).reshape(-1, 16), axis=1).astype(int)

    ann, bob = bits(0), bits(1)
    # 4,000 coins: five standard deviations are 158; over 128 bits the chance is below 1e-4.
    assert np.all(np.abs(ann.sum(axis=0) - 2000) < 158)
    within = (ann[:2000] != ann[2000:]).sum(axis=1).mean()
    between = (ann[:2000] != bob[2000:]).sum(axis=1).mean()
    assert abs(within - 64) < 0.7
    assert abs(between - 64) < 0.7


def test_a_rotation_keeps_the_past_and_a_destroyed_key_ends_it() -> None:
    keys, register, generator = world(["ann"])
    before = sealed(keys, register, [0, 0], generator)
    rotated = keys.rotated(generator.randbytes)
    after = sealed(rotated, register, [0], generator)
    assert resolve(before, rotated, register).to_pylist() == ["ann", "ann"]
    assert resolve(after, keys, register).to_pylist() == [None]
    destroyed = rotated.without(1)
    assert resolve(before, destroyed, register).null_count == 2
    assert resolve(after, destroyed, register).to_pylist() == ["ann"]
    with pytest.raises(InputError, match="rotate first"):
        sealed(destroyed.without(2), register, [0], generator)


def test_a_person_who_is_forgotten_is_behind_no_vid_any_more() -> None:
    keys, register, generator = world(["ann", "bob"])
    vids = sealed(keys, register, [0, 1, 0], generator)
    listed = vids_of("ann", vids, keys, register)
    assert listed.to_pylist() == [vids[0].as_py(), vids[2].as_py()]
    kept = forget("ann", register)
    assert resolve(vids, keys, kept).to_pylist() == [None, "bob", None]
    assert len(vids_of("ann", vids, keys, kept)) == 0
    with pytest.raises(InputError, match="no such person"):
        forget("ann", kept)


@pytest.mark.parametrize(
    "vid",
    ["", "x", "@", NODE, f"short@{NODE}", f"{'A' * 24}@other.example.org", f"{'é' * 24}@{NODE}",
     f"{'A' * 25}@{NODE}", f"{'A' * 24}@{NODE}\n", None, f"{'A' * 24}@trustedxexample.org"],
)  # fmt: skip
def test_what_is_no_vid_of_ours_opens_to_nothing(vid: str | None) -> None:
    keys, register, _ = world(["ann"])
    assert open_vids(pa.array([vid], pa.string()), keys).null_count == 1
    assert resolve(pa.array([vid], pa.string()), keys, register).null_count == 1


def test_a_forged_vid_is_nobody() -> None:
    keys, register, _ = world(["ann"])
    forged = pa.array([f"AAE{'B' * 21}@{NODE}"], pa.string())
    assert open_vids(forged, keys).null_count == 0
    assert resolve(forged, keys, register).null_count == 1


def test_slices_and_empty_columns_are_sealed_right() -> None:
    keys, register, generator = world(["ann", "bob", "cid"])
    handles = register["handle"].combine_chunks()[1:]
    vids = seal(handles, keys, generator.randbytes)
    assert resolve(vids[1:], keys, register).to_pylist() == ["cid"]
    assert len(seal(handles[:0], keys, generator.randbytes)) == 0


def test_the_key_file_is_its_owners_alone(tmp_path: Path) -> None:
    keys, *_ = world(["ann"])
    path = tmp_path / "keys.json"
    save_keys(keys.rotated(random.Random(2).randbytes), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_keys(path) == keys.rotated(random.Random(2).randbytes)
    save_keys(keys, path)
    assert load_keys(path) == keys
    path.chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        load_keys(path)


def test_a_key_file_is_on_disk_together_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename is durable only once its folder is: else a power cut takes the new key away."""
    path = tmp_path / "keys.json"
    told: list[tuple[bool, bool]] = []

    def fsync(handle: int) -> None:
        told.append((stat.S_ISDIR(os.fstat(handle).st_mode), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    save_keys(world(["ann"])[0], path)
    assert told == [(False, False), (True, True)]  # the bytes, then the name they have


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"node":"a","current":1,"epochs":{"1":"00"}}',
     '{"node":"a","current":1,"epochs":{"1":"zz"}}', '{"node":"A b","current":1,"epochs":{}}'],
)  # fmt: skip
def test_a_broken_key_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(InputError, match="not a key file"):
        load_keys(path)


def test_names_and_epochs_have_limits() -> None:
    random_bytes = random.Random(1).randbytes
    longest = ".".join(["a" * 49] * 4)
    assert len(longest) == 199
    assert OPAQUE_LENGTH + 1 + len(longest) <= VID_LENGTH_MAX
    assert new_keys(longest, random_bytes)
    for wrong in ("", "a..b", "-a", "a b", "a@b", "a" * 64, longest + ".aa"):
        with pytest.raises(InputError):
            new_keys(wrong, random_bytes)
    last = TrustedKeys(NODE, {EPOCH_MAX: b"k" * 32}, EPOCH_MAX)
    with pytest.raises(LimitError):
        last.rotated(random_bytes)


def test_a_vid_names_its_trusted_node() -> None:
    assert trusted_node_of("abc@a.org") == "a.org"
    for wrong in ("abc", "@a.org", "abc@"):
        with pytest.raises(InputError):
            trusted_node_of(wrong)


@given(st.lists(st.integers(0, 4), max_size=20), st.integers(0, 2**32))
def test_a_few_vids_open_as_a_column_does(rows: list[int], seed: int) -> None:
    keys, register, generator = world(["ann", "bob", "cy", "dee", "eve"], seed)
    older = sealed(keys, register, rows, generator).to_pylist()
    keys = keys.rotated(generator.randbytes)
    newer = sealed(keys, register, rows, generator).to_pylist()
    odd = ["", "@", "x@" + NODE, "A" * 24, "A" * 24 + "@other", "é" * 24 + "@" + NODE]
    vids = [*older, *newer, *odd, *(vid + "@" + NODE for vid in newer[:1])]
    for kept in (keys, keys.without(1)):
        column = open_vids(pa.array(vids, pa.string()), kept).to_pylist()
        assert open_few(vids, kept) == column
        assert open_few(vids * 8, kept) == column * 8
