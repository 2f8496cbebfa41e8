"""Sealing keys of vids: on disk before the answer, readable until they expire, bounded."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.errors import ConflictError, RateError, StoreError
from roamcast.identity.vid_keys import (
    DELETED_MAX,
    PREFIX,
    RETRY_US,
    KeepVidKey,
    VidKey,
    VidKeyStore,
)
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.machine import Effect, Entry, Store, Stored, StoreFailed

NOW = 1_000
KEY, OTHER = b"k" * 32, b"o" * 32


def written(part: VidKeyStore, vid: str = "a", until: int = NOW + 9, ticket: int = 1) -> Store:
    (store,) = part.receive(KeepVidKey(ticket, vid, KEY, until), NOW)
    assert isinstance(store, Store)
    return store


def kept(part: VidKeyStore, vid: str = "a", until: int = NOW + 9) -> None:
    assert part.receive(Stored(written(part, vid, until).token), NOW) == [Acknowledged(1)]


def test_a_key_is_readable_and_answered_once_it_is_on_disk() -> None:
    part = VidKeyStore()
    store = written(part)
    assert part.key_of("a") is None
    assert part.receive(Stored(store.token), NOW) == [Acknowledged(1)]
    assert part.key_of("a") == KEY
    assert part.key_of("b") is None


def test_a_disk_that_refuses_refuses_the_registration() -> None:
    part = VidKeyStore(keys_max=1)
    (failed,) = part.receive(StoreFailed(written(part).token, "full"), NOW)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, StoreError)
    assert part.occupancy() == {"keys": (0, 1)}
    kept(part)


def test_a_repeat_writes_only_what_lasts_longer_and_another_key_is_refused() -> None:
    part = VidKeyStore()
    kept(part)
    assert part.receive(KeepVidKey(2, "a", KEY, NOW + 9), NOW) == [Acknowledged(2)]
    kept(part, until=NOW + 20)
    assert part.advance(NOW + 19) == []
    (failed,) = part.receive(KeepVidKey(3, "a", OTHER, NOW + 9), NOW)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ConflictError)


def test_a_vid_whose_deletion_and_new_registration_both_fail_takes_no_room() -> None:
    part = VidKeyStore(keys_max=1)
    kept(part)
    (deletion,) = part.advance(NOW + 9)
    assert isinstance(deletion, Store)
    again = written(part, until=NOW + 30)
    part.receive(StoreFailed(deletion.token, "full"), NOW + 10)
    part.receive(StoreFailed(again.token, "full"), NOW + 10)
    assert part.occupancy() == {"keys": (0, 1)}
    kept(part, "b", NOW + 30)


def test_a_key_leaves_when_its_time_is_over_also_after_a_restart() -> None:
    part = VidKeyStore()
    stored = {PREFIX + "a": msgspec.msgpack.encode(VidKey(KEY, NOW + 9))}
    part.restore(stored, NOW)
    assert part.key_of("a") == KEY
    assert part.deadline() == NOW + 9
    (store,) = part.advance(NOW + 9)
    assert isinstance(store, Store)
    assert store.writes == ((PREFIX + "a", None),)
    assert part.key_of("a") is None
    assert part.receive(StoreFailed(store.token, "full"), NOW + 9) == []
    (again,) = part.advance(NOW + 9 + RETRY_US)
    assert isinstance(again, Store)
    assert again.writes == store.writes
    assert part.receive(Stored(again.token), NOW) == []
    assert part.occupancy()["keys"][0] == 0
    assert part.deadline() is None


def test_a_replica_takes_up_keys_and_deletions() -> None:
    part = VidKeyStore()
    encoded = msgspec.msgpack.encode(VidKey(KEY, NOW + 9))
    part.adopt((Entry(PREFIX + "a", encoded, 1), Entry(PREFIX + "b", None, 2)), NOW)
    assert part.key_of("a") == KEY
    part.adopt((Entry(PREFIX + "a", None, 3),), NOW)
    assert part.key_of("a") is None
    assert part.deadline() is None


def test_keys_are_bounded_and_the_oldest_stays() -> None:
    part = VidKeyStore(keys_max=3)
    kept(part, "a")
    kept(part, "b")
    written(part, "c")
    (failed,) = part.receive(KeepVidKey(9, "d", KEY, NOW + 9), NOW)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, RateError)
    assert part.occupancy() == {"keys": (3, 3)}
    assert part.key_of("a") == KEY
    kept(part, "a", NOW + 30)  # who is known may come again


def test_one_write_deletes_a_bounded_number() -> None:
    part = VidKeyStore()
    value = msgspec.msgpack.encode(VidKey(KEY, NOW + 9))
    part.restore({f"{PREFIX}{number}": value for number in range(DELETED_MAX + 1)}, NOW)
    sizes = [len(store.writes) for store in part.advance(NOW + 9) if isinstance(store, Store)]
    assert sizes == [DELETED_MAX, 1]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 12), st.booleans())))
def test_what_was_acknowledged_and_has_not_expired_is_readable(
    steps: list[tuple[str, int, bool]],
) -> None:
    """The record is a plain dictionary of acknowledged expiries; the disk answers in order."""
    part, record, now = VidKeyStore(keys_max=4), dict[str, int](), 0
    disk: dict[str, bytes] = {}

    def run(effects: list[Effect], vid: str, until: int, *, well: bool) -> None:
        for effect in effects:
            if isinstance(effect, Store):
                if well:
                    disk.update({k: v for k, v in effect.writes if v is not None})
                    for key, value in effect.writes:
                        if value is None:
                            disk.pop(key, None)
                answer = Stored(effect.token) if well else StoreFailed(effect.token, "full")
                run(list(part.receive(answer, now)), vid, until, well=well)
            elif isinstance(effect, Acknowledged):
                record[vid] = max(until, record.get(vid, 0))

    for vid, lasts, well in steps:
        now += 3
        run(list(part.advance(now)), "", 0, well=well)
        run(
            list(part.receive(KeepVidKey(1, vid, KEY, now + lasts), now)),
            vid,
            now + lasts,
            well=well,
        )
        held, bound = part.occupancy()["keys"]
        assert held <= bound
        for one in "abcde":
            assert (part.key_of(one) is not None) == (record.get(one, 0) > now)
        assert {f"{PREFIX}{one}" for one, until in record.items() if until > now} <= disk.keys()


def test_writes_of_one_vid_that_are_on_their_way_count_once_each_until_they_are_settled() -> None:
    part = VidKeyStore()
    first, second, third = (written(part, until=NOW + 9 + number) for number in range(3))
    assert part.occupancy()["keys"][0] == 1
    part.receive(StoreFailed(first.token, "full"), NOW)
    assert part.occupancy()["keys"][0] == 1, "two more may still arrive"
    part.receive(StoreFailed(second.token, "full"), NOW)
    part.receive(StoreFailed(third.token, "full"), NOW)
    assert part.occupancy()["keys"][0] == 0
    kept(part)
    kept(part, until=NOW + 30)
    assert part.occupancy()["keys"][0] == 1, "a longer life takes no more room"
    (failed,) = part.receive(StoreFailed(written(part, until=NOW + 40).token, "full"), NOW)
    assert isinstance(failed, Failed)
    assert part.occupancy()["keys"][0] == 1
