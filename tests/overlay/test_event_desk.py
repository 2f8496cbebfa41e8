"""What the event desk and a drain refuse, before anything has changed."""

from types import SimpleNamespace
from typing import Any

import pytest

from roamcast.channels.server.standing import Standing
from roamcast.errors import ConflictError, ForbiddenError, InputError, RoamcastError
from roamcast.model.contexts import Context
from roamcast.model.events import Acknowledged, Failed
from roamcast.model.filters import Filter
from roamcast.model.parts import Forward
from roamcast.overlay.consumers.desk import EventDesk
from roamcast.overlay.consumers.drain import Drain, DrainNode
from roamcast.overlay.consumers.events import PublishEventFor, SubscribeSessionEvents
from roamcast.overlay.consumers.settings import EventSettings

HUB: Any = SimpleNamespace(sessions={"s": SimpleNamespace(form="json", ledger=None)})


def desk(*, hides: str = "", refuses: RoamcastError | None = None) -> EventDesk:
    """A desk whose rules hide one vid, and whose node may refuse consumers."""

    def check_attach(*_: Any) -> None:
        if refuses is not None:
            raise refuses

    policy: Any = SimpleNamespace(
        visible_to=lambda context, *_: None if context.vid == hides else context
    )
    return EventDesk(
        HUB,
        policy,
        EventSettings(),
        check_owner=lambda *_: None,
        served=tuple,
        check_attach=check_attach,
        standing=Standing(1_000),
    )


def error_of(effects: Any) -> type[RoamcastError]:
    (failed,) = effects
    assert isinstance(failed, Failed)
    return type(failed.error)


def test_an_event_that_not_everybody_may_see_is_refused() -> None:
    found = desk(hides="secret")
    for vid in ("open", "secret"):
        effects = found.receive(PublishEventFor(1, "owner", "p", 1, 1, Context(vid)), 0)
        if vid == "open":
            assert isinstance(effects[0], Forward)
        else:
            assert error_of(effects) is ForbiddenError


def test_a_consumer_that_is_elsewhere_by_now_is_refused_and_not_kept() -> None:
    given = SubscribeSessionEvents(1, "s", "events", Filter.parse("true"))
    assert isinstance(desk().receive(given, 0)[0], Forward)
    found = desk(refuses=ConflictError("elsewhere"))
    assert error_of(found.receive(given, 0)) is ConflictError
    assert len(found) == 0


@pytest.mark.parametrize(("rate", "taken"), [(0.5, True), (1.0, True), (0.0, False)])
def test_a_drain_may_be_slower_than_a_session_a_second(rate: float, taken: bool) -> None:
    drain = Drain(
        HUB,
        consumers_of=lambda _: (),
        consumers={},
        prepared=lambda *_: True,
        nodes=lambda: {"b": ""},
    )
    effects = drain.receive(DrainNode(1, rate=rate), 0)
    if taken:
        assert effects == [Acknowledged(1)]
    else:
        assert error_of(effects) is InputError
