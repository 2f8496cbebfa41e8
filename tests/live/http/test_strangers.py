"""Connections without a token have a limit of their own, and the oldest make room for newcomers."""

import pytest

from roamcast.live.config.settings import Limits
from roamcast.live.http.connections import LimitedHttp, Strangers, http_protocol


class Connection:
    """Notes that it was refused."""

    refused = ""

    def refuse(self, problem: str) -> None:
        self.refused = problem


def entered(strangers: Strangers, *addresses: str) -> list[Connection]:
    made = []
    for address in addresses:
        made.append(Connection())
        strangers.enter(made[-1], address)  # type: ignore[arg-type]
    return made


@pytest.mark.limit("limits.anonymous_connections_max")
def test_beyond_the_limit_the_oldest_of_all_makes_room() -> None:
    strangers = Strangers(3, 3)
    made = entered(strangers, "a", "b", "c")
    assert not any(one.refused for one in made)
    made += entered(strangers, "d")
    assert [bool(one.refused) for one in made] == [True, False, False, False]
    assert len(strangers) == 3


@pytest.mark.limit("limits.anonymous_per_address_max")
def test_beyond_an_addresss_limit_its_oldest_makes_room() -> None:
    strangers = Strangers(10, 2)
    made = entered(strangers, "a", "b", "b")
    assert not any(one.refused for one in made)
    made += entered(strangers, "b")
    assert [bool(one.refused) for one in made] == [False, True, False, False]


def test_who_has_shown_a_token_or_left_counts_no_more() -> None:
    strangers = Strangers(1, 1)
    (first,) = entered(strangers, "a")
    strangers.leave(first)  # type: ignore[arg-type]
    strangers.leave(first)  # type: ignore[arg-type]
    second, third = entered(strangers, "a", "a")
    assert (first.refused, bool(second.refused), third.refused) == ("", True, "")


def test_a_service_has_its_own_strangers() -> None:
    made = http_protocol(Limits(anonymous_connections_max=2, anonymous_per_address_max=9))
    assert issubclass(made, LimitedHttp)
    assert made.strangers is not LimitedHttp.strangers
