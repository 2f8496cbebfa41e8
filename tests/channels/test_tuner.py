"""Which channels a client listens to, and from where (AMS, footnote 5)."""

import pytest

from roamcast.channels.client.tuner import Tuner
from roamcast.channels.server.messages import Announce, Band
from roamcast.channels.server.settings import MapSettings
from roamcast.model.machine import Listen


def announce(query: int, version: int, **positions: int) -> Announce:
    bands = tuple(Band(0, channel, 1, position) for channel, position in positions.items())
    return Announce(query, 7, version, bands)


def positions(tuner: Tuner) -> dict[str, int]:
    return {name: tuned.receiver.expected for name, tuned in tuner.channels.items()}


def test_a_stream_is_followed_from_the_announced_positions() -> None:
    tuner = Tuner(MapSettings(), lambda: 0.5, 0)
    effects = tuner.link(announce(1, 3, old=8, new=5), "server", 0, mine=True)
    assert effects == [Listen("old"), Listen("new")]
    assert positions(tuner) == {"old": 8, "new": 5}


def test_a_channel_made_since_the_stream_is_known_is_followed_from_its_first_message() -> None:
    tuner = Tuner(MapSettings(), lambda: 0.5, 0)
    tuner.link(announce(1, 2, old=4), "server", 0, mine=True)
    # Another query's answer tells of the new channel before its announcement has come.
    tuner.link(announce(2, 3, old=9, new=5), "server", 0, mine=True)
    assert positions(tuner) == {"old": 4, "new": 1}
    tuner.link(announce(1, 3, old=6, new=1), "server", 0, mine=True)
    assert positions(tuner) == {"old": 4, "new": 1}


def test_a_channel_that_was_lost_is_followed_again_from_where_the_new_answer_says() -> None:
    tuner = Tuner(MapSettings(), lambda: 0.5, 0)
    tuner.link(announce(1, 2, old=4, other=2), "server", 0, mine=True)
    tuner.drop("old")
    tuner.link(announce(1, 2, old=900, other=2), "server", 0, mine=True)
    assert positions(tuner) == {"other": 2, "old": 900}


@pytest.mark.parametrize("query", [2, 9])
@pytest.mark.parametrize("version", [2, 3])
def test_an_earlier_position_that_comes_late_by_another_way_is_gone_back_to(
    version: int, query: int
) -> None:
    tuner = Tuner(MapSettings(), lambda: 0.5, 0)
    # The answer to one subscription says where the channel is now; the other one, of another or
    # of the same query, needs what was sent before.
    tuner.link(announce(9, 3, old=7), "server", 0, mine=True)
    assert tuner.link(announce(query, version, old=1), "server", 0, mine=True) == []
    assert positions(tuner) == {"old": 1}
    tuner.channels["old"].receiver.expected = 5
    tuner.link(announce(query, 3, old=1), "server", 0, mine=True)  # once is enough
    assert positions(tuner) == {"old": 5}


def test_bands_beyond_a_clients_limit_are_left_out_and_no_others() -> None:
    tuner = Tuner(MapSettings(), lambda: 0.5, 1_000)
    bands = tuple(Band(limit, f"band/{limit}", 1, 1) for limit in (2_000, 1_000, 0, 500))
    effects = tuner.link(Announce(1, 7, 1, bands), "server", 0, mine=True)
    assert effects == [Listen("band/1000"), Listen("band/500")]
