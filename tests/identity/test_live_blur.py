"""What a broker shows of times: rounded as archives round, for pseudonyms alone."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from roamcast.identity.blurring import rounded
from roamcast.identity.live_blur import EXACT, LiveBlur
from roamcast.model.contexts import Context
from roamcast.model.time import EARLIEST, LATEST

VID = "A" * 24 + "@trust.example"
BLUR = LiveBlur(900)


@given(
    st.text("abcXYZ019_-", min_size=22, max_size=40),
    st.sampled_from(["", "@trust.example", "@é"]),
    st.integers(EARLIEST, LATEST),
    st.integers(EARLIEST, LATEST),
    st.sampled_from([1, 60, 900, 86_400]),
)
def test_a_shown_interval_is_what_an_archive_would_store(
    opaque: str, node: str, one: int, two: int, grid_s: int
) -> None:
    vid, begin, end = opaque + node, min(one, two), max(one, two)
    lower, upper = rounded(pa.array([vid]), np.array([begin]), np.array([end]), grid_s)
    shown = LiveBlur(grid_s).shown(Context(vid, "hq/1", None, {}, begin, end))
    assert (shown.t_r, shown.t_d) == (lower[0], upper[0])
    assert LiveBlur(grid_s).shown(shown) is shown


def test_names_that_stay_and_open_ends_are_left_alone() -> None:
    for vid in ("bus-12", "ada:phone", "A" * 21, "A" * 21 + "@trust.example", "a/b" * 10):
        context = Context(vid, "hq/1", None, {}, 123, 456)
        assert BLUR.shown(context) is context
    lasting = BLUR.shown(Context(VID, "hq/1", None, {}, 10**15 + 1))
    assert lasting.t_d is None
    assert lasting.t_r < 10**15 + 1
    exact = Context(VID, "hq/1", None, {}, 10**15 + 1)
    assert EXACT.shown(exact) is exact


def test_where_few_are_places_and_points_of_pseudonyms_are_coarser() -> None:
    def person(number: int, place: str, vid: str = "") -> Context:
        return Context(vid or f"{number:024}", place, None, {}, 0, 10)

    crowd = [person(number, "hq/1/101") for number in range(3)]
    alone = [person(9, "hq/1/102"), person(0, "hq/1/103", "printer")]
    thick = LiveBlur(900, 3).thickened([*crowd, *alone])
    assert [one.place for one in thick] == ["hq/1/101"] * 3 + ["hq/1", "hq/1/103"]
    assert LiveBlur(900).thickened([*crowd, *alone]) == [*crowd, *alone]
    outside = [Context(f"{n:024}", None, (9.1002 + n / 10_000, 48.7), {}, 0, 10) for n in range(2)]
    (one, two) = LiveBlur(900, 2).thickened(outside)
    assert one.point == two.point != outside[0].point
