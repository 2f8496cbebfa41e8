"""A consumer's own memory of its homes: who may still keep something of it.

It raises its attachment at every node it comes to. A node that serves it says so; until then the
node that did before, and all it has tried since, are named to the next one, which asks them.
"""

from typing import Final

from roamcast.overlay.handoff.messages import Attachment

TRAIL_MAX: Final = 16
"""Former homes that a consumer names."""


class HomeTrail:
    """The attachments of one subscription."""

    def __init__(self, start: int) -> None:
        """`start`: higher than in any earlier life of the consumer."""
        self.attachment = Attachment(start, 0)
        self.served = Attachment(0, 0)
        """When it was last served, …"""
        self.nodes: tuple[str, ...] = ()
        """… by the first of these; the others it has tried since."""

    def goes_to(self, node: str) -> tuple[str, ...]:
        """Raise the attachment; give the trail for the node it comes to."""
        self.attachment = Attachment(self.attachment.start, self.attachment.counter + 1)
        trail = self.nodes
        tried = dict.fromkeys((*self.nodes, node))
        first, *rest = tried
        self.nodes = (first, *rest[-(TRAIL_MAX - 1) :])
        return trail

    def served_by(self, node: str) -> None:
        """A node says that it serves the consumer: nobody before it keeps anything."""
        self.served, self.nodes = self.attachment, (node,)
