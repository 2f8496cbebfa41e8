"""Claims: a new home asks the former ones for what they keep of a consumer, until all answer."""

from collections.abc import Iterable

from roamcast.overlay.flows.vector import Pairs
from roamcast.overlay.handoff.messages import Attachment
from roamcast.overlay.homes.messages import HomeClaim, HomeGiven


class HomeClaiming:
    """One consumer's former homes, as far as they are known, and what they said."""

    def __init__(
        self,
        consumer: str,
        owner: str,
        attachment: Attachment,
        served: Attachment,
        *,
        state: bool,
        until_us: int,
    ) -> None:
        self.consumer = consumer
        self.owner = owner
        self.attachment = attachment
        self.served = served
        self.state = state
        """Whether the modulators' state is awaited."""
        self.until_us = until_us
        """Until when former homes are asked to forget it; for the state as long as it takes."""
        self.coming = False
        """A former home has sent it to this node."""
        self.nodes: dict[str, None] = {}
        """Who has not answered."""
        self._given: set[str] = set()
        """To whom it was sent: who does not know it yet will."""

    def ask(self, nodes: Iterable[str]) -> None:
        """Ask these, too."""
        self.nodes.update(dict.fromkeys(nodes))

    def was_given(self, to: str) -> None:
        """Ask a node to which it was sent: that it knows nothing yet is no answer."""
        self._given.add(to)
        self.nodes[to] = None

    def messages(self, node: str, had: Pairs) -> list[HomeClaim]:
        """Make what is said to each."""
        return [
            HomeClaim(
                to, node, self.consumer, self.owner, self.attachment, self.served, self.state, had
            )
            for to in self.nodes
        ]

    def answered(self, answer: HomeGiven, node: str) -> None:
        """Take an answer: it may name another node to ask."""
        if not answer.at and answer.origin in self._given:
            return
        self.nodes.pop(answer.origin, None)
        self._given.discard(answer.origin)
        if answer.at == node:
            self.coming = True
        elif answer.at:
            self.was_given(answer.at)

    @property
    def in_vain(self) -> bool:
        """Whether nobody has it."""
        return not self.nodes and not self.coming
