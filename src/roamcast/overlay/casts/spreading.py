"""Where a cast goes from here: to each neighbour beyond which somebody may match, once.

The past is asked of `Areas`, the present and the future of `Crowd`. Both only ever name a neighbour
too many. What `Crowd` cannot know is who came and went while a node was cut off, or what a node
forgot when it crashed. So a cast also asks `Areas` once a node has joined the tree, or begun a new
life, since the cast was sent: then it goes wherever its area is served.
"""

from collections.abc import Collection, Sequence

from roamcast.matching.aggregate import Summary
from roamcast.model.areas import Area
from roamcast.overlay.casts.held import plan_of
from roamcast.overlay.casts.messages import CastBody
from roamcast.overlay.casts.settings import CastSettings
from roamcast.overlay.overlay import Overlay
from roamcast.overlay.tables.areas import Areas
from roamcast.overlay.tables.crowd import Crowd
from roamcast.overlay.topology.items import LinkItem


class Spreading:
    """What a node knows of the others, as far as casts go."""

    def __init__(self, overlay: Overlay, settings: CastSettings, now: int) -> None:
        areas = overlay.exchange.tables.get(Areas.name)
        crowd = overlay.exchange.tables.get(Crowd.name)
        self.node = overlay.links.node
        self.areas = areas if isinstance(areas, Areas) else None
        self.crowd = crowd if isinstance(crowd, Crowd) else None
        self.joined_us = now
        """When a node last joined the tree, or began a new life, as far as we know."""
        self._overlay = overlay
        self._settings = settings
        self._epochs: dict[str, int] = {}
        self._nodes = {self.node}
        self._began: dict[str, int] = {}
        """Links in use → since when."""
        self._summaries: dict[str, Summary | None] = {}

    def learn(self, items: Sequence[LinkItem], now: int) -> None:
        """Note nodes whose items are of a new life."""
        for item in items:
            if item.epoch > self._epochs.get(item.node, 0):
                self._epochs[item.node] = item.epoch
                self.joined_us = now

    def changed(self, now: int) -> None:
        """Take up the tree and the links as they are now."""
        nodes = set(self._overlay.topology.tree)
        if nodes - self._nodes:
            self.joined_us = now
        self._nodes = nodes
        known = self._known_nodes()
        self._epochs = {node: one for node, one in self._epochs.items() if node in known}
        links = self._overlay.exchange.links
        self._began = {link: self._began.get(link, now) for link in links}
        self._summaries = {
            link: one for link, one in self._summaries.items() if link in self._began
        }

    def is_news(self, link: str, table: str) -> bool:
        """Whether a link's new offer may concern casts: a watermark alone does not."""
        if table != Crowd.name or self.crowd is None:
            return table == Areas.name
        known = self._summaries.get(link)
        self._summaries[link] = self.crowd.summary(link)
        return known is None or known is not self._summaries[link]

    def lacking(self, known: Collection[str]) -> bool:
        """Whether some link in use is not among these."""
        return any(link not in known for link in self._began)

    def leaves(self, area: Area) -> bool:
        """Whether somebody may be in an area beyond some link."""
        return bool(self._links() if self.areas is None else self.areas.beyond(area, None))

    def serves(self, body: CastBody) -> bool:
        """Whether somebody at this node may match a cast, now or later."""
        return self._overlay.feeding.may_serve(plan_of(body).area)

    def wanted(
        self, body: CastBody, came_from: str, now: int, *, pushed: bool = False
    ) -> tuple[list[str], bool]:
        """Name the neighbours to hand a cast to; and whether to ask again soon.

        One that is pushed down goes wherever its area is served, whoever is there.
        """
        plan = plan_of(body)
        found: set[str] = set()
        everywhere = pushed or self._may_lack(body)
        if plan.past is not None or everywhere:
            area = plan.area if everywhere or plan.past is None else plan.past
            found.update(
                self._links() if self.areas is None else self.areas.beyond(area, came_from)
            )
        if plan.future is not None:
            crowd = self.crowd
            found.update(self._links() if crowd is None else crowd.beyond(plan.future, came_from))
        wanted = [link for link in sorted(found) if link in self._began and link != came_from]
        young = [
            link
            for link in wanted
            if not self._knows(link) and now < self._began[link] + self._settings.unknown_us
        ]
        return [link for link in wanted if link not in young], bool(young)

    def _links(self) -> list[str]:
        return list(self._began)

    def _knows(self, link: str) -> bool:
        return all(table.knows(link) for table in (self.areas, self.crowd) if table is not None)

    def _may_lack(self, body: CastBody) -> bool:
        """Whether somebody may have matched whom `Crowd` never showed."""
        return self.joined_us + self._settings.margin_us > body.split_at

    def missing(self) -> list[str]:
        """Name the nodes that are known, and out of reach."""
        known = self._known_nodes() | set(self._overlay.links.neighbours)
        return sorted(known - set(self._overlay.topology.tree))

    def _known_nodes(self) -> set[str]:
        return {item.node for item in self._overlay.topology.table.items.values()}

    def accounted(self, until: int, now: int) -> bool:
        """Whether everybody's contexts up to a moment are known of, beyond all links (trap 4)."""
        margin = self._settings.margin_us
        if self.missing() or now < self.joined_us + margin:
            return False
        crowd = self.crowd
        if crowd is None or not crowd.has_watermarks:
            return True
        least = max(until, self.joined_us + margin // 2)
        marks = [crowd.watermark(link) for link in self._began]
        return all(mark is not None and mark >= least for mark in marks)
