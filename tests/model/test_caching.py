"""A cache by bytes holds its bound, and forgets what was used longest ago."""

import pytest

from roamcast.model.caching import ENTRY_BYTES, ByBytes, remembering
from roamcast.model.filters.evaluate import REMEMBERED_BYTES, like
from roamcast.overlay.flows import messages


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


def test_a_function_remembers_what_it_gave_by_weight() -> None:
    made: list[str] = []

    @remembering(2 * ENTRY_BYTES + 30, each=1)
    def shout(text: str) -> str:
        """Say it loudly."""
        made.append(text)
        return text.upper()

    assert [shout("a" * 10), shout("a" * 10), shout("b" * 20)] == ["A" * 10, "A" * 10, "B" * 20]
    assert (len(made), shout.held.bytes) == (2, 2 * ENTRY_BYTES + 30)
    shout("c" * 11)  # one byte too many with both: the oldest goes, and the next
    assert (len(shout.held), shout.held.bytes) == (1, ENTRY_BYTES + 11)
    shout.cache_clear()
    shout("b" * 20)
    assert (made[-1], shout.__doc__) == ("b" * 20, "Say it loudly.")


def test_long_patterns_shapes_and_events_leave_no_more_than_their_bytes() -> None:
    for number in range(40):
        like(f"{number}" + "a%" * 8_000)
        messages._context.held.put(b"%d" % number, None, 8 * messages.BODY_BYTES_MAX)  # type: ignore[arg-type]
    assert 0 < len(like.held) < 40
    assert like.held.bytes <= REMEMBERED_BYTES
    assert messages._context.held.bytes <= messages.REMEMBERED_BYTES
    like.cache_clear()
    messages._context.cache_clear()
