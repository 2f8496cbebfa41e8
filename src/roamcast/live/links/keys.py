"""Which key opens what a view class may read, and until when? One for all its links, drawn anew.

Who has left a class for good opens nothing of it any more: the others get another key. A class also
has a tag, by which a relay knows that a client may see exactly what it may see itself.
"""

import hmac
from collections import Counter
from collections.abc import Iterable
from typing import Final

from roamcast.channels.client.link_messages import VIEW_BYTES
from roamcast.transport.sealing import class_key

PROBED_CLASSES_MAX: Final = 1_000
"""View classes that get probes, those with links the longest; the others use their sockets."""


class ClassKeys:
    """The view classes that have links, and their keys."""

    def __init__(self, secret: bytes) -> None:
        """`secret` is drawn anew for every process."""
        self._secret = secret
        self._links: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        self._drawn = 0
        self._left: dict[str, int] = {}

    def enter(self, view_class: str) -> None:
        """A link of a class begins."""
        self._links[view_class] += 1
        if view_class not in self._names:
            self._draw(view_class)

    def leave(self, view_class: str, now: int, *, sealed: bool) -> None:
        """A link of a class ends; if anything is `sealed`, the others shall get another key."""
        self._links[view_class] -= 1
        if not self._links[view_class]:
            del self._links[view_class], self._names[view_class]
            self._left.pop(view_class, None)
        elif sealed:
            self._left.setdefault(view_class, now)

    def hurry(self, view_class: str) -> None:
        """Who has just left lost a right: another key at the next occasion."""
        if view_class in self._left:
            self._left[view_class] = 0

    def renewed(self, oldest: int) -> set[str]:
        """Draw another key for each class that somebody left before then; give those classes."""
        due = {one for one, at in self._left.items() if at <= oldest}
        for view_class in due:
            del self._left[view_class]
            self._draw(view_class)
        return due

    def _draw(self, view_class: str) -> None:
        """Give a view class a key it never had: groups seal with what is derived from a name."""
        self._drawn += 1
        self._names[view_class] = f"{view_class}\n{self._drawn}"

    def name(self, view_class: str | None) -> str | None:
        """Name a class's key for those who seal with it; None where nobody has one."""
        return None if view_class is None else self._names.get(view_class)

    def key(self, view_class: str) -> bytes:
        """Give a class's key."""
        return class_key(self._secret, self._names[view_class])

    def tag(self, view_class: str) -> bytes:
        """Give what tells a class from others, and nothing else, as long as this process lives."""
        return hmac.digest(self._secret, b"view\n" + view_class.encode(), "sha256")[:VIEW_BYTES]

    def probed(self) -> Iterable[str]:
        """Name the keys of the classes that get probes."""
        return [self._names[one] for one in list(self._links)[:PROBED_CLASSES_MAX]]
