"""The meeting's figures: their queue by hand, and one quick run of each that is quick."""

import random

import pytest

from roamcast.channels.server.messages import Subscribe
from roamcast.channels.server.settings import MapSettings, Mode
from roamcast.lab import _ams
from roamcast.lab._ams import MEETING_S, ROOM, ServerDriver, largest_meeting, mean_delay_s, watching
from roamcast.lab.ams_3 import share_row, whole_meeting
from roamcast.lab.report import QUIET


def test_the_queue_agrees_with_one_followed_by_hand() -> None:
    service = 2.0
    moments = sorted(
        _ams.np.random.default_rng(random.Random(3).getrandbits(32)).random(200) * MEETING_S
    )
    free_at = total = 0.0
    for moment in moments:
        free_at = max(free_at, moment) + service
        total += free_at - moment
    assert mean_delay_s(service, 200, random.Random(3)) == pytest.approx(total / 200)


def test_the_largest_meeting_is_near_what_fills_the_time() -> None:
    found = largest_meeting(lambda _: 0.1)
    assert 2_300 <= found <= 2_600  # 240 s of 0.1 s each, and a second's delay


def test_an_update_takes_one_transmission_by_channel_and_one_each_by_unicast() -> None:
    for mode, expected in ((Mode.UNICAST, 30), (Mode.MANY, 1), (Mode.SINGLE, 1)):
        driver = ServerDriver(MapSettings(mode=mode))
        for number in range(30):
            driver.request(f"c{number}", Subscribe("here", watching(ROOM)))
        before = driver.transmissions
        driver.request("c0", _ams.person(0, ROOM, driver.now))
        assert driver.transmissions - before == expected + 1  # and the answer to c0


def test_the_more_people_ask_in_their_own_words_the_more_transmissions_an_update_takes() -> None:
    standard, some, all_ = (share_row(percent, 40) for percent in (0, 50, 100))
    assert standard["transmissions_per_update"] == 1
    assert 2 < some["transmissions_per_update"] < 25  # of twenty own queries about half hold
    assert some["transmissions_per_update"] < all_["transmissions_per_update"] < 41


@pytest.mark.slow
def test_a_whole_meeting_takes_about_one_transmission_per_update() -> None:
    meeting = whole_meeting(400, QUIET, guests=5)
    assert meeting["people"] == 400
    assert meeting["real_clients_right"] == 5  # some came by the carousel, some before it turned
    assert 0 < meeting["current_set_megabytes_per_client_max"] < 1
    assert meeting["megabytes_heard_per_client_mean"] > 0.05
    assert 0.9 <= meeting["transmissions_per_update"] < 2
    assert meeting["broker_megabytes"] > 0
