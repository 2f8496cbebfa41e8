"""Five deliberate defects: the swarm finds each of them, so it would find them if they happened."""

from functools import partial

import pytest

from roamcast.channels.failover.merging import Merging
from roamcast.channels.failover.messages import HandedContext, HandedRemoval
from roamcast.channels.server import desk as desk_module
from roamcast.channels.server.current_sets import CurrentSets
from roamcast.channels.server.outbox import Outbox
from roamcast.channels.server.view_class import ViewClass
from roamcast.channels.spread import streams as streams_module
from roamcast.channels.spread.dissemination import Dissemination
from roamcast.model.contexts import context_of
from roamcast.sim.workloads.map import MapWorkload
from roamcast.sim.workloads.recovery import RecoveryWorkload
from tests.planting import promise_broken

PLAIN = {"compiled": 0}
broken = partial(promise_broken, MapWorkload, sizes=PLAIN)


@pytest.mark.slow
def test_skipping_an_announcement_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(self: Dissemination, view: object, record: object, newcomer: object) -> None:
        real = self._desk.deliver
        self._desk.deliver = lambda *_, **__: None  # type: ignore[method-assign]
        earn(self, view, record, newcomer)  # type: ignore[arg-type]
        self._desk.deliver = real  # type: ignore[method-assign]

    earn = Dissemination._earn_channel
    monkeypatch.setattr(Dissemination, "_earn_channel", silent)
    assert broken() == "views equal the map"


def test_forgetting_a_coalesced_change_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Outbox.add

    def forgetful(self: Outbox, item: object, listing: str = "") -> bool:
        before = dict(self._waiting)
        kept = real(self, item, listing)  # type: ignore[arg-type]
        if kept and len(self._waiting) == len(before):  # it would have replaced an earlier one
            self._waiting = before
        return kept

    monkeypatch.setattr(Outbox, "add", forgetful)
    # The present state, asked for when a batch is made, would hide it.
    monkeypatch.setattr(CurrentSets, "fresh", lambda _self, _view_class, state: state)
    assert broken() == "views equal the map"


def test_counting_bytes_without_headers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def body_only(message: object) -> int:
        return len(getattr(message, "payload", b""))

    from roamcast.channels.server import outbox as outbox_module

    for module in (desk_module, streams_module, outbox_module):
        monkeypatch.setattr(module, "size_of", body_only)
    assert broken() == "never above a bandwidth limit"


def test_keeping_a_channel_after_its_last_client_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(self: ViewClass, stream: object, reason: str) -> None:
        del self, stream, reason

    monkeypatch.setattr(ViewClass, "close_stream", keep)
    assert broken() == "empty when clients leave"


@pytest.mark.slow
def test_merging_two_sides_by_the_older_timestamp_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Merging._merge

    def older(self: Merging, item: HandedContext | HandedRemoval, sender: str) -> None:
        vid = item.vid if isinstance(item, HandedRemoval) else context_of(item.body).vid
        known = self._contexts.map.contexts.get(vid)
        if known is not None:
            if item.stamp > known.stamp:
                return
            known.stamp = 0  # whatever is older than this side's takes its place
        real(self, item, sender)

    monkeypatch.setattr(Merging, "_merge", older)
    assert promise_broken(RecoveryWorkload) in {"views equal the map", "one publisher"}
