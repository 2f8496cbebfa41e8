"""What can go wrong in the world's input, as one tree.

RoamcastError                   the root: one line that says what to do
├── InputError                  something we were given is malformed; carries source, line, position
│   ├── FilterError             a filter does not parse, or uses what we do not support
│   ├── ContextError            a context (or a Feature, or a row of Arrow) is not valid
│   ├── PlaceError              a place or a hierarchy of places is not valid
│   ├── MessageError            a cast, an item or a wire message is not valid
│   ├── TreeError               a dissemination tree or a placement request is not valid
│   ├── ConflictError           somebody else has what was asked for
│   ├── NotFoundError           there is no such thing, or the asker may not see it: both look alike
│   ├── SettingsError           the settings file, or what the command line says instead, is wrong
│   └── LimitError              well-formed, but larger, deeper or more than a limit allows
│       └── RateError           more often than a limit allows; carries when to try again
├── AuthError                   no token, a bad one (401), or one that does not allow this (403)
├── StoreError                  the disk refused: nothing of this was acknowledged
├── UnreachableError            a service does not answer, or not as ours does; it may later
└── MissingError                something this machine lacks; says what to install
    └── GroupsUnavailable       it cannot join groups this way (UDP, NATS); there are others

Assert states our own mistakes; these are raised for the world's.
"""

from typing import Literal


class RoamcastError(Exception):
    """Anything the world did that we refuse; its text is one line that says what to do."""


class InputError(RoamcastError):
    """Malformed input, with where it was found: file, line and position as far as known."""

    def __init__(
        self,
        problem: str,
        *,
        source: str | None = None,
        line: int | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.source = source
        self.line = line
        self.position = position

    def located(self, source: str, line: int | None = None) -> "InputError":
        """Return the same error, told from which file and line it came."""
        return type(self)(self.problem, source=source, line=line, position=self.position)

    def __str__(self) -> str:
        where = [part for part in (self.source, _numbered("line", self.line)) if part]
        if self.position is not None:
            where.append(f"position {self.position}")
        text = " ".join(self.problem.split())
        return f"{', '.join(where)}: {text}" if where else text


class FilterError(InputError):
    """A filter that does not parse or uses a construct we do not support."""


class ContextError(InputError):
    """A context that is not valid."""


class PlaceError(InputError):
    """A place or a hierarchy of places that is not valid."""


class MessageError(InputError):
    """A cast, an item or a wire message that is not valid."""


class TreeError(InputError):
    """A dissemination tree or a placement request that is not valid."""


class ConflictError(InputError):
    """Somebody else has what was asked for."""


class NotFoundError(InputError):
    """There is no such thing, or the asker may not see it: both look alike."""


class SettingsError(InputError):
    """Settings that are not valid; the text names the key."""


class LimitError(InputError):
    """Well-formed input beyond a limit; the text names the limit and its value."""


class RateError(LimitError):
    """More often than a limit allows; `retry_us` says when to try again."""

    retry_us: int = 0


class AuthError(RoamcastError):
    """Who asks is unknown (status 401), or known and not allowed (403)."""

    def __init__(self, problem: str, *, status: Literal[401, 403] = 401) -> None:
        super().__init__(problem)
        self.status = status


class StoreError(RoamcastError):
    """The disk refused a write; whoever waited for it must take it as not done."""


class UnreachableError(RoamcastError):
    """A service that does not answer, or not as ours does; the same may work later."""


class MissingError(RoamcastError):
    """Something this machine lacks; the text says what to install or where to look."""


class GroupsUnavailable(MissingError):  # noqa: N818 — a state of this machine, not a mistake
    """This machine cannot join groups by UDP multicast or NATS; the socket is left."""


def _numbered(word: str, number: int | None) -> str | None:
    return None if number is None else f"{word} {number}"
