"""A cache by bytes holds its bound, and forgets what was used longest ago."""

import pytest

from roamcast.model.caching import ENTRY_BYTES, ByBytes


def test_it_holds_as_many_bytes_as_its_bound_and_no_more() -> None:
    cache: ByBytes[int, str] = ByBytes(3 * (ENTRY_BYTES + 10))
    for key in range(3):
        cache.put(key, str(key), 10)
    assert [cache.get(key) for key in range(3)] == ["0", "1", "2"]
    assert cache.get(0) == "0"  # used last
    cache.put(3, "3", 10)
    assert [cache.get(key) for key in range(4)] == ["0", None, "2", "3"]
    assert cache.bytes == 3 * (ENTRY_BYTES + 10)


def test_a_value_that_replaces_another_weighs_once() -> None:
    cache: ByBytes[int, str] = ByBytes(10_000)
    cache.put(1, "a", 100)
    cache.put(1, "b", 200)
    assert (cache.get(1), cache.bytes, len(cache)) == ("b", ENTRY_BYTES + 200, 1)
    cache.clear()
    assert (cache.bytes, len(cache)) == (0, 0)


@pytest.mark.parametrize(("size", "held"), [(100, True), (101, False)])
def test_what_is_larger_than_the_bound_is_not_kept(size: int, held: bool) -> None:
    cache: ByBytes[str, str] = ByBytes(ENTRY_BYTES + 100)
    cache.put("a", "x", size)
    assert (cache.get("a") is not None) is held
