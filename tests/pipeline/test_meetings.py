"""The sweep over a place's contexts finds who met whom, each pair once, however rows are cut."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from roamcast.pipeline.analysis import meetings

WIDTH = meetings.BUCKET_S * 1_000_000


def drawn(seed: int, count: int) -> list[tuple[str, str, int, int, bool]]:
    draw = np.random.default_rng(seed)
    vids = [f"v{number % 40}" for number in range(count)]
    starts = draw.integers(-WIDTH, 5 * WIDTH, count).tolist()
    lasted = draw.choice([0, WIDTH // 50, WIDTH // 4, 3 * WIDTH], count).tolist()
    return [
        (f"p{draw.integers(3)}", vid, start, start + length, int(vid[1:]) < 12)
        for vid, start, length in zip(vids, starts, lasted, strict=True)
    ]


def bucketed(contexts: list[tuple[str, str, int, int, bool]]) -> pa.RecordBatch:
    rows = [
        {"place": place, "bucket": bucket, "vid": vid, "start": start, "end": end, "reach": end,
         "asked": asked}
        for place, vid, start, end, asked in contexts
        for bucket in range(start // WIDTH, end // WIDTH + 1)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows)


@pytest.mark.parametrize("room", [1, 1 << 20])
def test_whoever_was_there_together_is_told_once(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meetings, "PAIRS_TOGETHER", room)
    for seed in range(3):
        contexts = drawn(seed, 150)
        want: Counter[tuple[str, str, str]] = Counter()
        for place, vid, start, end, asked in contexts:
            for other_place, other, other_start, other_end, _ in contexts:
                shared = min(end, other_end) - max(start, other_start)
                if asked and place == other_place and vid != other and shared > 0:
                    want[vid, other, place] += shared
        got: Counter[tuple[str, str, str]] = Counter()
        for batch in meetings.met(iter([bucketed(contexts)])):
            for row in batch.to_pylist():
                got[row["source"], row["vid"], row["place"]] += row["shared"]
        assert got == want
        assert len(want) > 100


def test_nobody_meets_nobody() -> None:
    assert list(meetings.met(iter([]))) == []
