"""What sessions find of brokers: how far they are, for the homes of their consumers."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from roamcast.model.machine import Effect
from roamcast.model.parts import Forward, Part
from roamcast.overlay.consumers.events import ReportSessionBrokers
from roamcast.overlay.homes.events import ReportBrokers


class SearchDesk(Part):
    """Tells homes how far the brokers are that a client would go to; others do not count."""

    part: ClassVar[str] = "search desk"
    inputs: ClassVar = (ReportSessionBrokers,)

    def __init__(
        self,
        node: str,
        *,
        hop_us: int,
        modulated_of: Callable[[str], Collection[str]],
        nodes: Callable[[], Mapping[str, str]],
    ) -> None:
        """`modulated_of`: consumers of a session that have homes; `nodes`: who is reached where."""
        self.node = node
        self._hop_us = hop_us
        self._modulated_of = modulated_of
        self._nodes = nodes

    def receive(self, given: Any, now: int) -> Sequence[Effect]:
        """Take what a session found."""
        del now
        names = self._modulated_of(given.session)
        if not names:
            return ()
        known = {url.rstrip("/"): node for node, url in self._nodes().items() if url}
        found = {known[url]: us / self._hop_us for url, us in given.found if url in known}
        found[self.node] = given.here_us / self._hop_us
        return [Forward(ReportBrokers(name, tuple(found.items()))) for name in names]
