"""How far a cast has come: counts of all nodes, exact; a driver tells senders less."""

from collections.abc import Sequence

import msgspec

from roamcast.errors import NotFoundError
from roamcast.model.machine import Effect
from roamcast.overlay.casts.desk import HeldCasts, ignore
from roamcast.overlay.casts.held import REPORTED, CastStatus, HeldCast, name_of, plan_of
from roamcast.overlay.casts.messages import REPORT, CastReport, CastView
from roamcast.overlay.events import HandleParcel, ParcelId


class Reports:
    """Counts of casts, on their way to the node that sent each."""

    def __init__(self, desk: HeldCasts) -> None:
        self._desk = desk

    def view(self, cast: str) -> CastView:
        """Say how far a cast has come; the counts of people are for nobody as they are."""
        held = self._desk.casts.get(cast)
        if held is None or held.body.origin != self._desk.node:
            raise NotFoundError(f"no cast {cast[:60]!r} was sent here, or it is over")
        own = self.of(held, 0)
        reports = {**held.reports, self._desk.node: own}
        total = {
            name: sum(getattr(report, name) for report in reports.values())
            for name in ("found", "delivered", "waiting", "unreachable", "refused")
        }
        missing = [] if self._desk.spreading is None else self._desk.spreading.missing()
        return CastView(
            cast,
            plan_of(held.body).tense,
            CastStatus.LIVE.value if held.end is None else CastStatus(held.end.status).value,
            held.body.expires_us,
            1 + sum(report.asked for report in reports.values()),
            sum(report.answered for report in reports.values()),
            **total,
            given_up=tuple(missing),
        )

    def of(self, held: HeldCast, number: int) -> CastReport:
        """Count what this node has done for a cast."""
        pages = [page.page for page in held.pages.values()]
        waiting = sum(len(page.pairs) for page in pages if page.to and held.id in page.owes)
        return CastReport(
            held.id,
            self._desk.node or "-",
            number,
            len(held.sent_to),
            held.looked,
            held.found,
            held.unnamed + sum(page.reached for page in pages),
            waiting,
            held.unreachable + sum(page.unreachable for page in pages),
            sum(page.refused for page in pages),
        )

    def soon(self, held: HeldCast, now: int) -> None:
        """Report within the interval, if the cast is another node's."""
        if self._desk.spreading is not None and held.body.origin != self._desk.node:
            self._desk.timers.sooner(("report", held.id, 0), now + self._desk.settings.report_us)

    def send(self, held: HeldCast, now: int) -> list[Effect]:
        """Tell the origin how far this node has come, if that is new."""
        report = self.of(held, now)
        known = held.reported
        if known is not None and msgspec.structs.replace(known, number=now) == report:
            return []

        def then(done: bool, now: int) -> Sequence[Effect]:
            if done:
                held.reported = report
            elif self._desk.casts.get(held.id) is held:
                self.soon(held, now + self._desk.settings.retry_us)
            return []

        body = msgspec.msgpack.encode(report)
        return [self._desk.requests.post(REPORT, (held.body.origin,), body, (), then)]

    def arrived(self, parcel: ParcelId, report: CastReport) -> Sequence[Effect]:
        """Take a node's counts; the newest are right."""
        held = self._desk.casts.get(report.cast)
        known = None if held is None else held.reports.get(report.node)
        if held is None or (known is not None and known.number >= report.number):
            return [HandleParcel(parcel)]
        if known is None and len(held.reports) >= self._desk.settings.reports_max:
            return [HandleParcel(parcel)]

        def handled(now: int) -> Sequence[Effect]:
            del now
            if self._desk.casts.get(held.id) is not held:  # it was forgotten meanwhile
                return [self._desk.requests.store(((key, None),), ignore)]
            held.reports[report.node] = report
            return []

        key = f"{REPORTED}{name_of(held.id)}/{report.node}"
        return self._desk.handle(parcel, ((key, msgspec.msgpack.encode(report)),), handled)
