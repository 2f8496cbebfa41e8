"""What the map shows of a vid, and who is told of it."""

from typing import Protocol

import msgspec

from roamcast.model.contexts import Context


class Follower(Protocol):
    """A part that follows what the map shows; it takes notes, and acts when it is next advanced."""

    def shows(self, context: Context) -> None:
        """The map shows this state of a vid; `t_r` is since when."""
        ...

    def ends(self, context: Context) -> None:
        """The map shows a vid no more; `t_d` is when its last state ended."""
        ...


class OnMap(msgspec.Struct):
    """What the map shows of a vid, and since when."""

    context: Context
    begin: int
    rules: str
    life: int
    row: int = 0
    """The number of the step that waits for the disk; 0 if it came with a publication."""


def same(known: OnMap, context: Context, rules: str) -> bool:
    """Whether the map shows this state already; when it began does not count."""
    was, stated = known.context, context.attributes
    return (
        was.place == context.place
        and was.point == context.point
        and known.rules == rules
        and was.attributes == stated
        # 1, 1.0 and TRUE are equal in Python, and not in a filter
        and all(type(stated[name]) is type(value) for name, value in was.attributes.items())
    )
