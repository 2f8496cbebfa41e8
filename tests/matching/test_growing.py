"""Large sets walk every path: pages widen, split and join; columns outgrow a page; values go."""

import random

import numpy as np
import pytest

from roamcast.errors import LimitError
from roamcast.matching import FilterSet, vocabulary
from roamcast.matching.index import JOIN_SPARE
from roamcast.matching.layout import (
    CHAIN_MAX,
    CLUSTERS,
    GRIDS,
    PAGE_ROWS_MAX,
    PAGE_WIDTH,
    PAGES,
    PAGES_FREE,
    POOL,
    POOL_FREE,
    RECORD_WORDS,
    RECORDS_FREE,
    SLOTS_MAX,
    Tuning,
    grown,
)
from roamcast.matching.vocabulary import SETTLED_SINGLY_MAX, Labels, TextOrder
from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter, syntax
from roamcast.model.filters.atoms import All, Values
from roamcast.model.filters.values import Interval

ONE_CLUSTER = Tuning(root_rows=1 << 30, chain_rows=4)


def conjunction(**ends: tuple[float, float] | str) -> Filter:
    made = Filter(syntax.Truth(True), "")
    made.__dict__["normal"] = All(
        tuple(
            Values(name, "string", (Interval(end, end),))
            if isinstance(end, str)
            else Values(name, "number", (Interval(*end),))
            for name, end in sorted(ends.items())
        )
    )
    return made


def numbered(count: int, dice: random.Random) -> dict[str, tuple[float, float]]:
    lows = [dice.randrange(1000) for _ in range(count)]
    return {f"f{n}": (low, low + dice.randrange(200)) for n, low in enumerate(lows)}


def inside(held: dict[str, tuple[float, float]], value: float) -> set[str]:
    return {name for name, (low, high) in held.items() if low <= value <= high}


@pytest.mark.parametrize("tuning", [ONE_CLUSTER, Tuning(root_rows=64, cluster_rows=64)])
def test_thousands_come_go_and_come_again(tuning: Tuning) -> None:
    dice = random.Random(7)
    held = numbered(3 * PAGE_ROWS_MAX // 2, dice)
    index = FilterSet(tuning=tuning)
    index.add_many((name, conjunction(n=ends)) for name, ends in held.items())
    arrays = index._index.arrays
    assert arrays.pages[: arrays.counters[PAGES], PAGE_WIDTH].max() > 1
    for name in dice.sample(sorted(held), len(held) * 19 // 20):  # almost all: pages join
        index.remove(name)
        del held[name]
    for value in (0, 500, 999):
        assert set(index.match(Context("v", attributes={"n": value}))) == inside(held, value)
    for name, ends in numbered(600, dice).items():
        index.add(f"again-{name}", conjunction(n=ends))
        held[f"again-{name}"] = ends
    contexts = [Context("v", attributes={"n": dice.random() * 1200}) for _ in range(20)]
    for context in contexts:
        value = context.attributes["n"]
        assert isinstance(value, float)
        assert set(index.match(context)) == inside(held, value)
    assert len(index.match_batch(to_arrow(contexts)).rows) == sum(
        len(index.match(context)) for context in contexts
    )


def test_a_removal_that_makes_pages_join_stays_within_the_pool() -> None:
    index = FilterSet(tuning=ONE_CLUSTER)
    for name in "nm":  # a page of rows about n, one of rows about m
        index.add_many(
            (f"{name}{k}", conjunction(**{name: (k, k + 1000)})) for k in range(PAGE_ROWS_MAX)
        )
    arrays = index._index.arrays
    assert arrays.counters[PAGES] == 2
    whole = grown(arrays.pool, 3 * JOIN_SPARE)
    # as if rows that came and went had used up what was to spare
    index._index.arrays = arrays._replace(pool=whole[: 2 * JOIN_SPARE])
    arrays.counters[POOL] = 2 * JOIN_SPARE
    arrays.counters[POOL_FREE:RECORDS_FREE] = -1
    for name, kept in (("n", 2000), ("m", PAGE_ROWS_MAX // 16)):
        for k in range(kept, PAGE_ROWS_MAX):
            index.remove(f"{name}{k}")
            arrays = index._index.arrays
            assert arrays.counters[POOL] <= len(arrays.pool)
    assert arrays.counters[PAGES_FREE] >= 0, "no pages joined: this test proves nothing"
    assert set(index.match(Context("v", attributes={"m": 1100}))) == {
        f"m{k}" for k in range(100, PAGE_ROWS_MAX // 16)
    }
    assert len(index.match(Context("v", attributes={"n": 1100}))) == 1001


def test_rows_that_come_take_the_places_of_those_that_went() -> None:
    index = FilterSet(tuning=ONE_CLUSTER)
    held = {f"f{n}": (n, n + 1) for n in range(3 * PAGE_ROWS_MAX)}
    index.add_many((name, conjunction(n=ends)) for name, ends in held.items())
    assert index._index.arrays.counters[PAGES] == 3
    for page in range(3):  # one of each page, the oldest first
        index.remove(f"f{page * PAGE_ROWS_MAX + 9}")
        del held[f"f{page * PAGE_ROWS_MAX + 9}"]
    for n in range(3):
        index.add(f"again{n}", conjunction(n=(n, 10)))
        held[f"again{n}"] = (n, 10)
    assert index._index.arrays.counters[PAGES] == 3
    for value in (1.5, 9, PAGE_ROWS_MAX, 2 * PAGE_ROWS_MAX + 9):
        assert set(index.match(Context("v", attributes={"n": value}))) == inside(held, value)


def test_a_chain_has_a_bound_however_it_is_tuned() -> None:
    index = FilterSet(tuning=Tuning(root_rows=1 << 30, chain_rows=1 << 30, depth=99))
    held = {f"f{n}": (n / 4, n / 4 + 100) for n in range(CHAIN_MAX + 1)}  # no two alike
    named = [(name, conjunction(n=ends)) for name, ends in held.items()]
    index.add_many(named[:CHAIN_MAX])
    assert index._index.arrays.counters[PAGES] == 0
    assert set(index.match(Context("v", attributes={"n": 500}))) == inside(
        dict(list(held.items())[:CHAIN_MAX]), 500
    )
    index.add(*named[CHAIN_MAX])
    assert index._index.arrays.counters[PAGES] == 1
    assert set(index.match(Context("v", attributes={"n": 500}))) == inside(held, 500)


def test_a_set_that_is_emptied_keeps_one_cluster_and_forgets_its_values() -> None:
    index = FilterSet(tuning=Tuning(root_rows=0, cluster_rows=1, chain_rows=1))
    taken = []
    for wave in range(3):  # the same memory serves every wave
        index.add_many(
            (f"f{n}", conjunction(k=f"k{wave}-{n % 50}", m=(n % 7, n % 7))) for n in range(400)
        )
        used = index._index.arrays.counters[[CLUSTERS, RECORD_WORDS]].tolist()
        assert index.match(Context("v", attributes={"k": f"k{wave}-8", "m": 2})) != []
        for n in range(400):
            index.remove(f"f{n}")
        assert index._index.vocabulary.properties["k"].text_tokens == {}
        assert index._index.rows == 0
        taken.append(used)
        assert index._index.arrays.counters[[CLUSTERS, RECORD_WORDS]].tolist() == used
    assert taken[0] == taken[1] == taken[2]
    assert (index._index.arrays.hash_keys == -1).all()


def test_more_columns_than_a_page_has_slots_are_checked_exactly() -> None:
    index = FilterSet(tuning=ONE_CLUSTER)
    names = [f"a{n}" for n in range(SLOTS_MAX + 20)]
    index.add_many((name, conjunction(**{name: (1, 2)})) for name in names)
    index.add_many((f"{name}-text", conjunction(**{name: "x"})) for name in names)
    attributes = {name: 1 if n % 2 else 3 for n, name in enumerate(names)}
    wanted = [name for n, name in enumerate(names) if n % 2]
    assert index.match(Context("v", attributes=attributes)) == wanted
    assert len(index.match(Context("v", attributes=dict.fromkeys(names, "x")))) == len(names)


def test_many_values_of_one_column_share_lines_and_are_told_apart() -> None:
    index = FilterSet(tuning=ONE_CLUSTER)
    index.add_many((f"f{n}", conjunction(k=f"k{n}")) for n in range(500))
    for n in (0, 63, 64, 126, 499):
        assert index.match(Context("v", attributes={"k": f"k{n}"})) == [f"f{n}"]
    assert index.match(Context("v", attributes={"k": "unknown"})) == []


def test_grids_follow_the_values_without_touching_older_pages() -> None:
    index = FilterSet(tuning=ONE_CLUSTER)
    for n in range(300):  # one by one, ever larger: the first grids are wrong for the later ones
        index.add(f"f{n}", conjunction(n=(n * n, n * n + 10)))
    assert index._index.arrays.counters[GRIDS] >= 2
    for n in (0, 1, 17, 150, 299):
        context = Context("v", attributes={"n": n * n})
        assert f"f{n}" in index.match(context)
        assert all(0 <= n * n - int(name[1:]) ** 2 <= 10 for name in index.match(context))


def test_a_batch_with_more_pairs_than_fit_is_taken_in_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from roamcast.matching import searching as module

    index = FilterSet()
    index.add_many((f"f{n}", conjunction(n=(0, n))) for n in range(300))
    index.add(
        "polygon", Filter.parse("n < 5 AND S_INTERSECTS(geometry, POLYGON((0 0,2 0,1 1,0 0)))")
    )
    contexts = [Context("v", None, (1.0, 0.5), {"n": row % 7}) for row in range(400)]
    whole = index.match_batch(to_arrow(contexts))
    monkeypatch.setattr(module, "PAIRS_MAX", 1000)
    halves = index.match_batch(to_arrow(contexts))
    assert (whole.rows == halves.rows).all()
    assert whole.ids.tolist() == halves.ids.tolist()
    assert len(whole.rows) > 100_000
    assert whole.to_arrow().column_names == ["row", "id"]


def test_the_limits_of_columns_and_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "COLUMNS_MAX", 2)
    monkeypatch.setattr(vocabulary, "PREDICATES_MAX", 4)
    index = FilterSet()
    index.add("a", Filter.parse("n IN (1, 3, 5) AND m = 2"))
    index.add("b", Filter.parse("n IN (1, 3, 5, 7, 9)"))  # one interval too many: by the reference
    assert index.match(Context("v", attributes={"n": 3, "m": 2})) == ["a", "b"]
    assert index.match(Context("v", attributes={"n": 7, "m": 2})) == ["b"]
    with pytest.raises(LimitError, match="at most 2 columns"):
        index.add("c", Filter.parse("x = 1"))
    assert "c" not in index


def known(index: FilterSet) -> tuple[object, ...]:
    words = index._index.vocabulary
    ways = {
        name: [getattr(found, way) for way in found.__slots__ if way not in ("special", "texts")]
        for name, found in words.properties.items()
    }
    texts = {name: dict(found.texts.numbers) for name, found in words.properties.items()}
    boxes = words.longitude, words.latitude
    return words.columns_count, words.defaults.tolist(), ways, texts, words.labels.count, boxes


@pytest.mark.parametrize(
    "refused",
    [
        "zz1 = 1 AND zz2 = 2",
        "zz1 IS NULL AND zz2 = 'x'",
        "zz1 > 'x' AND zz2 LIKE 'y%'",
        "n = 7 AND m IN (8, 9) AND zz1 = 'a' AND zz2 = true",
        "within(place, 'a')",
        "S_INTERSECTS(geometry, BBOX(0,0,1,1))",
    ],
)
def test_a_refused_filter_leaves_nothing_behind(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "COLUMNS_MAX", 3)
    index = FilterSet()
    index.add("a", Filter.parse("n = 1 AND m = 2"))
    here = Context("v", "a", (0.5, 0.5), {"n": 1, "m": 2, "zz1": 5, "zz2": "yy"})
    assert index.match(here) == ["a"]
    before = known(index)
    with pytest.raises(LimitError, match="at most 3 columns"):
        index.add_many([("b", Filter.parse("zz1 = 5 AND n = 1")), ("c", Filter.parse(refused))])
    assert known(index) == before
    assert index.match(here) == ["a"]
    with pytest.raises(LimitError, match="at most 3 columns"):
        index.add("c", Filter.parse(refused))
    assert known(index) == before
    assert index.match(here) == ["a"]
    index.add("d", Filter.parse("zz1 = 5"))  # the last column is still to be had
    assert len(index._searcher._scratch[0]) < 3
    assert index.match(here) == ["a", "d"]
    assert len(index._searcher._scratch[0]) == 3, "compiled code writes a key for every column"
    assert FilterSet.load(index.snapshot()).match(here) == ["a", "d"]


def test_what_grew_for_a_refused_filter_is_not_lost_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vocabulary, "COLUMNS_MAX", 40)
    index = FilterSet()
    index.add("a", Filter.parse("n = 1 AND t > 'b'"))
    refused = " AND ".join(f"x{n} = 'v{n}' AND y{n} > 'w{n}'" for n in range(30))
    with pytest.raises(LimitError, match="at most 40 columns"):  # columns, tokens, labels moved
        index.add("b", Filter.parse(refused))
    here = Context("v", attributes={"n": 1, "t": "c", "x0": "v0"})
    assert index.match(here) == ["a"]
    index.remove("a")
    index.add_many((f"f{n}", conjunction(n=(n, n), t="c")) for n in range(100))
    assert index.match(here) == ["f1"]
    assert index._index.arrays.columns is index._index.vocabulary.columns


def test_the_limit_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from roamcast.matching import index as module

    monkeypatch.setattr(module, "ROWS_MAX", 2)
    index = FilterSet()
    index.add("a", Filter.parse("n = 1 OR k = 'x'"))
    before = known(index)
    with pytest.raises(LimitError, match="at most 2 conjunctions"):
        index.add("b", Filter.parse("n = 2 AND m = 3"))
    assert known(index) == before
    assert index.match(Context("v", attributes={"n": 2})) == []


@pytest.mark.parametrize("order", ["ascending", "descending", "inwards", "shuffled"])
def test_labels_keep_the_order_of_texts_however_they_arrive(order: str) -> None:
    texts = [f"t{number:03d}" for number in range(200)]
    arriving = {
        "ascending": texts,
        "descending": texts[::-1],
        "inwards": [text for pair in zip(texts[:100], texts[:99:-1], strict=True) for text in pair],
        "shuffled": random.Random(3).sample(texts, len(texts)),
    }[order]
    labels, column = Labels(), TextOrder()
    for text in arriving[:150]:
        column.number(text, labels)
        column.settle(labels)
    for text in arriving[150:]:
        column.number(text, labels)
    column.settle(labels)
    assert len(arriving) - 150 <= SETTLED_SINGLY_MAX
    found = [column.label(text, labels) for text in texts]
    assert np.all(np.diff(np.array(found)) >= 4)
    assert all(column.label(text, labels) < column.label(text + "!", labels) for text in texts)
    assert column.label("", labels) < found[0]


def test_ids_of_one_filter_come_and_go_without_walking_through_the_others() -> None:
    """Removing in any order keeps the rest; a crowd with one query is the common case (AMS 8)."""
    wanted = Filter.parse("a = 1")
    matching = Context("v", attributes={"a": 1})
    for order in (1, -1, 7):
        index = FilterSet()
        names = [f"f{number}" for number in range(50)]
        index.add_many((name, wanted) for name in names)
        left = set(names)
        for step in range(len(names)):
            gone = sorted(left)[(step * order) % len(left)]
            index.remove(gone)
            left.discard(gone)
            assert set(index.match(matching)) == left
            assert all(index.name_of(index.number_of(name)) == name for name in left)
            if step % 9 == 0:
                index.add(f"again{step}", wanted)
                left.add(f"again{step}")
        assert len(index) == len(left)
        assert set(FilterSet.load(index.snapshot()).match(matching)) == left
