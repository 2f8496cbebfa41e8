"""Where sessions said they were, and which nodes they are heading for (0311)."""

from roamcast.model.earth import Point
from roamcast.overlay.handoff.predict import Seen, heading_for
from roamcast.overlay.handoff.settings import Surroundings


class Headings:
    """The last point of each session that reports points."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._seen: dict[str, Seen] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def toward(
        self, session: str, place: str, point: Point | None, now: int
    ) -> tuple[str, ...] | None:
        """Leave out the nodes that somebody turns away from; None: nothing is known of that."""
        before = self._seen.pop(session, None)
        if point is None:
            return None
        seen = self._seen[session] = Seen(point, now)
        ahead = heading_for(before, seen, self._around.nodes_at)
        if ahead is None:
            return None
        told = self._around.shaped(place)
        border = self._around.borders(place)
        return tuple(node for node in border if node in ahead or node not in told)

    def forget(self, session: str) -> None:
        """A session is over."""
        self._seen.pop(session, None)
