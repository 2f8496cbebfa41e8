"""The bench of channels runs on the machines as they are."""

import pytest

from bench import channels


def test_a_small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "ROUND", 5)
    monkeypatch.setattr(channels, "ROUNDS", 2)
    row = channels._row(20)
    assert row["subscriptions"] == 20
    assert row["queries"] > 0
    assert row["update_us"] > 0
