"""Texts by number: order, LIKE, and memory given back."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roamcast.matching.live import texts
from roamcast.matching.live.texts import Texts
from roamcast.model.filters.evaluate import like

_words = st.text("abcü𝒳%_\\\\", max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.lists(_words, min_size=1, max_size=8), st.text("abcü𝒳%_\\\\", max_size=8))
def test_like_agrees_with_the_reference(words: list[str], pattern: str) -> None:
    known = Texts()
    numbers = np.array([known.take(word) for word in words], np.int64)
    codes = texts.pattern_codes(pattern)
    out = np.empty(len(numbers), np.bool_)
    texts.like_each(known.data, known.spans, numbers, codes, out)
    expected = [bool(like(pattern).fullmatch(word)) for word in words]
    assert out.tolist() == expected
    found = np.empty(known.count + 1, np.int64)
    count = known.liking(pattern, found)
    if count is not None:
        assert set(found[:count].tolist()) == {
            int(number) for number, fits in zip(numbers, expected, strict=True) if fits
        }


def test_many_texts_are_searched_in_the_blocks_that_have_a_patterns_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(texts, "BLOCKS_FROM", 256)
    draw = random.Random(5)
    known = Texts()
    for word in (words := _random_words(draw, 1_500)):
        known.take(word)
    assert known.blocks is not None
    for word in (gone := draw.sample(words, 1_200)):
        known.drop(word)
    for word in (fresh := _random_words(draw, 900)):
        known.take(word)
    standing = {*words} - {*gone} | {*fresh}
    found = np.empty(known.count + 1, np.int64)
    for word in [*gone[:40], *draw.sample(sorted(standing), 80)]:
        pattern = f"%{word[3:6]}%" if len(word) % 2 else f"{word[:4]}_%"
        count = known.liking(pattern, found)
        wanted = like(pattern)
        assert {*found[:count].tolist()} == {
            known.numbers[text] for text in standing if wanted.fullmatch(text)
        }
    assert known.liking("%" + fresh[0] + "%", found[:1]) == 1
    # What was dropped leaves no bits behind for good.
    marked = int(np.bitwise_count(known.blocks).sum())
    assert marked <= 4 * sum(max(0, len(word) - 2) for word in standing)


def _random_words(draw: random.Random, count: int) -> list[str]:
    made = ("".join(draw.choices("abcdefgh", k=draw.randrange(6, 12))) for _ in range(count))
    return list(dict.fromkeys(made))


def test_many_wildcards_cost_no_more_than_pattern_times_text() -> None:
    known = Texts()
    number = known.take("a" * 2_000)
    codes = texts.pattern_codes("%a" * 500 + "%b")
    out = np.empty(1, np.bool_)
    texts.like_each(known.data, known.spans, np.array([number]), codes, out)
    assert not out[0]  # exponential matching would not end


def test_nothing_behind_a_text_is_read_as_its_character() -> None:
    data = np.frombuffer("ü".encode(), np.uint8)
    assert [texts._next(data, 0, stop) for stop in (1, 2)] == [1, 2]


def _ordered(known: Texts) -> None:
    words = sorted(known.numbers)
    labels = [int(known.labels[known.numbers[word]]) for word in words]
    assert labels == sorted(set(labels))
    for word in words[:: max(1, len(words) // 50)]:
        assert known.from_on(word, after=False) == known.labels[known.numbers[word]]


def test_labels_follow_the_order_of_texts_however_they_come() -> None:
    draw = random.Random(1)
    orders = {
        "ascending": [f"p{number:06d}" for number in range(3_000)],
        "descending": [f"p{number:06d}" for number in range(3_000, 0, -1)],
        "random": [f"p{draw.randrange(10**9)}" for _ in range(3_000)],
        "ever closer": ["a" * length for length in range(1, 600)],
    }
    for words in orders.values():
        known = Texts()
        known.take("zz")
        known.take("")
        for word in words:
            known.take(word)
        _ordered(known)
        for word in draw.sample(words, len(words) // 2):
            known.drop(word)
        _ordered(known)
        for word in words:
            known.take(word)
        _ordered(known)


def test_what_texts_occupied_is_given_back() -> None:
    known = Texts()
    known.take("stays")
    for number in range(2_000):
        known.take(f"{number:0200d}")
    grown = len(known.data)
    for number in range(2_000):
        known.drop(f"{number:0200d}")
    assert len(known.data) < grown // 8
    assert len(known) == 1
    start, stop = known.spans[known.numbers["stays"]]
    assert bytes(known.data[start:stop]) == b"stays"
    assert known.take("stays") == known.take("stays")  # counted by use
    for _ in range(3):
        known.drop("stays")
    assert len(known) == known.count == 0
