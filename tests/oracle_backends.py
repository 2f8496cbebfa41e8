"""Every back end against the oracle: the same filters, the same contexts, one meaning.

`differences` yields a line for each disagreement, so that a planted defect can be shown to be found
(tests/matching/test_filter_defects.py) by the same check that guards the code.
"""

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from roamcast.matching import FilterSet
from roamcast.matching.covering import covers
from roamcast.matching.layout import Tuning
from roamcast.model.context_arrow import to_arrow
from roamcast.model.contexts import Context, check
from roamcast.model.filters import Filter
from roamcast.model.filters.evaluate import evaluate
from roamcast.model.filters.holds import holds
from roamcast.model.filters.lasting import decide
from tests import oracle_filters as oracle

TUNINGS = [
    Tuning(),
    Tuning(root_rows=1 << 30, chain_rows=0),
    Tuning(root_rows=0, cluster_rows=1, chain_rows=1 << 30),
    Tuning(root_rows=1, cluster_rows=2, chain_rows=0, depth=5),
]
"""Few filters would never leave one chain: these cluster them at once, by hash and by bitmap."""

FILTERS, CONTEXTS = 50, 20
"""A round: 1,000 pairs."""


def context_of(record: oracle.Record) -> Context:
    attributes = {
        name: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value.us)
        if isinstance(value, oracle.Stamp)
        else value
        for name, value in record["attributes"].items()
    }
    return check(
        Context(
            record["vid"],
            record["place"],
            record["point"],
            attributes,
            record["t_r"],
            record["t_d"],
        )
    )


class Tally:
    """How often each answer was given, so that a check of nothing does not pass."""

    def __init__(self) -> None:
        self.answers: dict[bool | None, int] = {True: 0, False: 0, None: 0}
        self.left_out = 0
        self.covered = 0
        self.decided: dict[bool | None, int] = {True: 0, False: 0, None: 0}


def differences(seed: int, topics: Sequence[str] = (), tally: Tally | None = None) -> Iterator[str]:
    """One round of 1,000 pairs: yield what any back end answers otherwise than the oracle."""
    draw = random.Random(seed)
    tally = Tally() if tally is None else tally
    used = list(topics) or list(oracle.TOPICS)
    trees: list[oracle.Node] = []
    while len(trees) < FILTERS:
        related = trees and draw.random() < 0.2
        made = oracle.narrowed(draw.choice(trees), draw, used) if related else None
        trees.append(made or oracle.some_filter(draw, used, draw.choice([0, 1, 2, 2])))
    texts = [oracle.write(tree, draw) for tree in trees]
    filters = [Filter.parse(text) for text in texts]
    records = [oracle.some_record(draw, f"v{number % 7}") for number in range(CONTEXTS)]
    contexts = [context_of(record) for record in records]
    expected = [[_answer(tree, record, tally) for record in records] for tree in trees]
    yield from _evaluators(filters, contexts, expected)
    yield from _sets(draw, filters, contexts, expected)
    yield from _coverings(draw, filters, expected, tally)
    for number, tree in enumerate(trees):
        if "lifetimes" in used:
            if number % 2:  # tied to the filter's other terms, or with ends of its own only
                tree = ("and", (oracle.some_filter(draw, ["lifetimes"]), tree))
            else:
                tree = oracle.some_filter(draw, ["lifetimes"])
            wanted = Filter.parse(oracle.write(tree, draw))
            yield from decisions(tree, wanted, draw.choice(records), tally)


LEFT_OUT: Any = "left out"


def _answer(tree: oracle.Node, record: oracle.Record, tally: Tally) -> Any:
    try:
        answer = oracle.truth(tree, record)
    except oracle.Undecidable:
        tally.left_out += 1
        return LEFT_OUT
    tally.answers[answer] += 1
    return answer


def _evaluators(
    filters: list[Filter], contexts: list[Context], expected: list[list[Any]]
) -> Iterator[str]:
    for number, wanted in enumerate(filters):
        again = Filter.parse(wanted.text)
        if again != wanted:
            yield f"canonical text: {wanted.source} gives {wanted.text}, then {again.text}"
        for context, answer in zip(contexts, expected[number], strict=True):
            if answer is LEFT_OUT:
                continue
            told = {
                "evaluate": evaluate(wanted.expression, context),
                "holds": holds(wanted.normal, context),
                "canonical": evaluate(again.expression, context) is True,
            }
            for name, found in told.items():
                if found is not (answer if name == "evaluate" else answer is True):
                    yield f"{name}: {found}, not {answer}: {wanted.source} over {context}"


def _sets(
    draw: random.Random,
    filters: list[Filter],
    contexts: list[Context],
    expected: list[list[Any]],
) -> Iterator[str]:
    """The kernel, one context and one batch at a time, before and after some filters are gone."""
    index = FilterSet(tuning=draw.choice(TUNINGS))
    index.add_many((str(number), wanted) for number, wanted in enumerate(filters))
    batch = to_arrow(contexts)
    present = set(range(len(filters)))
    for _ in range(2):
        pairs = index.match_batch(batch)
        together = set(zip(pairs.rows.tolist(), pairs.ids.tolist(), strict=True))
        for row, context in enumerate(contexts):
            single = set(index.match(context))
            for number in present:
                answer = expected[number][row]
                if answer is LEFT_OUT:
                    continue
                for name, found in (
                    ("match", str(number) in single),
                    ("match_batch", (row, str(number)) in together),
                ):
                    if found is not (answer is True):
                        yield f"{name}: {found}, not {answer}: {filters[number].source}: {context}"
        for number in draw.sample(sorted(present), len(present) // 3):
            index.remove(str(number))
            present.remove(number)


def _coverings(
    draw: random.Random, filters: list[Filter], expected: list[list[Any]], tally: Tally
) -> Iterator[str]:
    # the shortest cover one another most often
    short = sorted(range(len(filters)), key=lambda number: len(filters[number].text))[:24]
    pairs = [(a, b) for a in short for b in short if a != b]
    pairs += [tuple(draw.sample(range(len(filters)), 2)) for _ in range(400)]
    for wide, narrow in pairs:
        if not covers(filters[wide], filters[narrow]):
            continue
        tally.covered += 1
        for one, other in zip(expected[wide], expected[narrow], strict=True):
            if other is True and one is not True and one is not LEFT_OUT:
                yield f"covers: {filters[wide].source} does not cover {filters[narrow].source}"
                break


def decisions(
    tree: oracle.Node, wanted: Filter, record: oracle.Record, tally: Tally
) -> Iterator[str]:
    """Drive `decide` by its own answers to the end, against every end the context may yet have.

    An answer is final as soon as no later end can change it, and not before. Moments where
    nothing can change behave as their neighbours, so those that the filter names, and the moments
    beside them, stand for all.
    """
    moments = sorted(oracle.moments_of(tree, record))
    moments = [moment for moment in moments if moment >= record["t_r"]]
    try:
        ends: dict[int | None, bool] = {
            end: oracle.truth(tree, {**record, "t_d": end}) is True for end in (*moments, None)
        }
    except oracle.Undecidable:
        return
    context = context_of({**record, "t_d": None})
    now: int | None = moments[0]
    asked = {}
    while now is not None and len(asked) <= len(moments):
        asked[now] = found = decide(wanted, context, now)
        if found.again is not None and found.again <= now:
            yield f"decide: asks again at {found.again}, not after {now}: {wanted.source}"
            return
        now = None if found.answer is not None else found.again
    if now is not None:
        yield f"decide: asks for ever: {wanted.source}"
    final: bool | None = None
    for moment in moments:
        if moment in asked:
            final = asked[moment].answer
        possible = {answer for end, answer in ends.items() if end is None or end >= moment}
        right = possible.pop() if len(possible) == 1 else None
        tally.decided[right] += 1
        if final is not right:
            yield f"decide: {final} at {moment}, not {right}: {wanted.source} over {context}"
            return
        if decide(wanted, context, moment).answer is not right:
            yield f"decide: not {right} when asked at {moment}: {wanted.source} over {context}"
            return
        if decide(wanted, context_of({**record, "t_d": moment}), moment).answer is not ends[moment]:
            yield f"decide: not {ends[moment]} for the end {moment}: {wanted.source}"
            return
