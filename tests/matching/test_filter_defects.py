"""Guards that bite: each of these defects, planted in the source, is found by the oracle.

The survivors of an audit and more of our own. A defect that is no longer found, or whose place in
the source is gone, fails here: plant it again where its meaning lives now.
"""

from itertools import islice

import pytest

from tests.matching import test_hashing, test_vocabulary
from tests.oracle_backends import differences
from tests.planting import planted, refuted

FILTERS = "roamcast.model.filters."
MATCHING = "roamcast.matching."
SEEDS = range(5)
"""As many rounds of 1,000 pairs as `make test` runs, all of the defect's topic."""

DEFECTS: dict[str, tuple[str, str, str, str]] = {
    # name: (topic, where, what stands there, what is planted)
    "NOT IN looks at the first kind of its list only": (
        "kinds",
        FILTERS + "leaves:_in_list",
        "else All(tuple(parts))",
        "else All(tuple(parts[:1]))",
    ),
    "NOT IN of several kinds needs only one of them": (
        "kinds",
        FILTERS + "leaves:_in_list",
        "else All(tuple(parts))",
        "else Any(tuple(parts))",
    ),
    "a text beside an instant on one attribute is a contradiction": (
        "kinds",
        FILTERS + "normal:_contradictory",
        'len(kind) > 1 and kind != {"string", "instant"}',
        "len(kind) > 1",
    ),
    "a text that is a moment is no instant in a batch": (
        "instants",
        MATCHING + "events_arrow:_texts",
        "MISSING if moment is None else moment for",
        "MISSING for",
    ),
    "a pattern's escape at its end is two characters": (
        "words",
        FILTERS + "leaves:_literal_prefix",
        "index + 1 < len(pattern)",
        "index + 2 < len(pattern)",
    ),
    "a lone backslash at the end of a pattern vanishes": (
        "words",
        FILTERS + "evaluate:like",
        "if escaped:  #",
        "if False:  #",
    ),
    "a prefix beside the surrogates ends in one": (
        "words",
        FILTERS + "values:_after_prefix",
        "code == 0xD800",
        "code == 0",
    ),
    "a prefix with the last character has no end": (
        "words",
        FILTERS + "values:_after_prefix",
        "if code <= 0x10FFFF:",
        "if code > 0x10FFFF:\n            return None\n        else:",
    ),
    "begins are tied to the first end, not the last": (
        "lifetimes",
        FILTERS + "normal:_tie_ends",
        "ends.intervals[-1].high",
        "ends.intervals[0].high",
    ),
    "ends are tied to the last begin, not the first": (
        "lifetimes",
        FILTERS + "normal:_tie_ends",
        "begins.intervals[0].low",
        "begins.intervals[-1].low",
    ),
    "an instant is not at or after itself": (
        "lifetimes",
        FILTERS + "temporal:compare",
        "left >= right",
        "left > right",
    ),
    "equals forgets its tolerance": (
        "lifetimes",
        FILTERS + "temporal:_shift",
        "moment + by",
        "moment",
    ),
    "decide asks again too early, and then never": (
        "lifetimes",
        FILTERS + "lasting:_end_decided",
        "i.high + 1 for",
        "i.high for",
    ),
    "decide takes the first possible end for all": (
        "lifetimes",
        FILTERS + "lasting:_end_decided",
        "if ahead == (Interval(low=now),):",
        "if ahead[0].low == now:",
    ),
    "decide forgets NOT over an attribute's span": (
        "lifetimes",
        FILTERS + "lasting:_known",
        "sides[1]), wanted)",
        "sides[1]), True)",
    ),
    "a null in a batch is zero": (
        "numbers",
        MATCHING + "events_arrow:_Batch.set",
        "self.keys[valid, column] = keys[valid]",
        "self.keys[:, column] = keys",
    ),
    "a null in a batch is the first text": (
        "words",
        MATCHING + "events_arrow:_distinct",
        "fill_null(-1)",
        "fill_null(0)",
    ),
    "an open context in a batch ended in 1970": (
        "lifetimes",
        MATCHING + "events_arrow:_instants",
        "fill_null(missing)",
        "fill_null(0)",
    ),
    "a null in a batch is there": (
        "flags",
        MATCHING + "events_arrow:_presence",
        "_valid(column)",
        "None",
    ),
    "a place is only its own ancestor": (
        "places",
        MATCHING + "vocabulary:places_of",
        'path.rfind("/", 0, end)',
        "-1",
    ),
    "b35 lies within b3": (
        "places",
        FILTERS + "values:inside_place",
        'prefixed(path + "/")',
        "prefixed(path)",
    ),
    "the complement of a set keeps its ends": (
        "numbers",
        FILTERS + "values:complement",
        "not interval.high_closed",
        "interval.high_closed",
    ),
    "up to a day is up to its first instant": (
        "instants",
        FILTERS + "leaves:_side",
        "sets.below(high, closed=True)",
        "sets.below(low, closed=True)",
    ),
    "an open end counts for the kernel": (
        "numbers",
        MATCHING + "keys:number_ends",
        "low += 1",
        "low += 0",
    ),
    "numbers beyond 2⁵³ are exact to the kernel": (
        "numbers",
        MATCHING + "keys:number_ends",
        "exact = False",
        "pass",
    ),
    "case is folded letter by letter": (
        "words",
        FILTERS + "evaluate:fold",
        "text.casefold()",
        "text.lower()",
    ),
    "a text without accents stays decomposed": (
        "words",
        FILTERS + "evaluate:fold",
        'unicodedata.normalize("NFC", bare)',
        "bare",
    ),
    "AND with something unknown is false": (
        "kinds",
        FILTERS + "evaluate:_all",
        "result = None",
        "result = False",
    ),
    "a circle across the antimeridian is looked for on one side": (
        "space",
        FILTERS + "leaves:_circle_envelope",
        "if west < -180 or east > 180:",
        "if False:",
    ),
    "180 and -180 lie a hair apart": (
        "space",
        "roamcast.model.earth:distance_metres",
        "360 - turn if turn > 180 else turn",
        "turn",
    ),
    "the antimeridian is a seam of a box across it": (
        "space",
        FILTERS + "shapes:insides",
        "if len(parts) != 1:",
        "if not parts:",
    ),
    "powers group from the left": (
        "numbers",
        FILTERS + "pieces:_powers_from_right",
        'while tree.get("op")',
        'while False and tree.get("op")',
    ),
    "a backslash before a quote is doubled": (
        "words",
        FILTERS + "scan:_plainly",
        'found["pairs"][::2]',
        'found["pairs"]',
    ),
    "a set covers what only begins in it": (
        "numbers",
        FILTERS + "values:subset",
        "_high_cut(outer[at]) < _high_cut(span)",
        "_high_cut(outer[at]) < _low_cut(span)",
    ),
    "what is absorbed is the narrower part": (
        "numbers",
        FILTERS + "normal:_absorb",
        "sets[o] < sets[index]",
        "sets[o] > sets[index]",
    ),
    "the border of a disjoint shape is inside it": (
        "space",
        FILTERS + "leaves:_spatial",
        "return _spatial(turned, not wanted)",
        "return _spatial(turned, wanted)",
    ),
    "a relation turned around keeps its name": (
        "instants",
        FILTERS + "leaves:_related",
        "_MIRROR.get(op, op)",
        "op",
    ),
}


def found(topic: str) -> str | None:
    """The first difference that the rounds of a topic show, or the error that they end in."""
    for seed in SEEDS:
        try:
            for line in islice(differences(seed, [topic]), 1):
                return line
        except Exception as error:  # noqa: BLE001 - a crash is found as well
            return repr(error)
    return None


@pytest.mark.parametrize("name", DEFECTS)
def test_the_oracle_finds_what_is_planted_in_filters(name: str) -> None:
    topic, where, old, new = DEFECTS[name]
    with planted(where, old, new):
        assert found(topic) is not None


@pytest.mark.parametrize("topic", sorted({topic for topic, *_ in DEFECTS.values()}))
def test_the_oracle_finds_nothing_where_nothing_is_planted(topic: str) -> None:
    assert next(differences(SEEDS[0], [topic]), None) is None


TABLE_DEFECTS: dict[str, tuple[str, str, str]] = {
    "a deletion moves nobody back into the gap": (
        "leave",
        "            gap = at",
        "            break",
    ),
    "a deletion leaves a key at its home behind the gap": (
        "leave",
        ">= (at - gap)",
        "> (at - gap)",
    ),
    "a deletion stops at the end of the table": (
        "leave",
        "if keys[at] == -1:",
        "if at == 0 or keys[at] == -1:",
    ),
    "growth forgets key 0": ("rehash", "old_keys[at] != -1", "old_keys[at] > 0"),
    "a search gives up at the first other key": (
        "find_child",
        "at = (at + 1) & (size - 1)",
        "return -1",
    ),
    "two keys share a place": ("enter", "while keys[at] != -1:", "while False:"),
}


@pytest.mark.parametrize("name", TABLE_DEFECTS)
def test_the_model_finds_what_is_planted_in_the_hash_table(name: str) -> None:
    function, old, new = TABLE_DEFECTS[name]
    pairs = test_hashing.COLLIDING[:9] + test_hashing.AT_THE_END[:9]
    test_hashing.churned(pairs)
    with planted(f"{MATCHING}hashing:{function}", old, new), refuted():
        test_hashing.churned(pairs)


LABEL_DEFECTS: dict[str, tuple[str, str, str]] = {
    "an unknown text is its neighbour": ("label", "label + 2", "label"),
    "a known text counts as the one before it": ("label", "bisect_right", "bisect_left"),
    "a label may be a neighbour's": (
        "_between",
        "low + STEP <= label <= high - STEP",
        "low <= label <= high",
    ),
    "labels grow beyond their span": ("_between", "-SPAN < label < SPAN", "True"),
    "labels are spread in the order of arrival": (
        "_relabel",
        "for text in self._sorted]",
        "for text in self.numbers]",
    ),
    "texts that are taken back stay": ("forget_waiting", "del self.numbers[text]", "pass"),
}


@pytest.mark.parametrize("name", LABEL_DEFECTS)
def test_the_model_finds_what_is_planted_in_labels(name: str) -> None:
    function, old, new = LABEL_DEFECTS[name]
    test_vocabulary.driven()
    with planted(f"{MATCHING}vocabulary:TextOrder.{function}", old, new), refuted():
        test_vocabulary.driven()
