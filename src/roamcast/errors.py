"""Everything we refuse, as one tree under `RoamcastError`.

Each class states the HTTP status and the title under which the service reports it: in problem
details (RFC 9457) over HTTP and in `error` messages of a session. A class without its own inherits
its parent's. The number in brackets is the status.

RoamcastError            [400]  root; the text is one line: what is wrong, what to do
├── InputError           [400]  malformed input; carries source, line and position
│   ├── FilterError             a filter does not parse, or uses an unsupported construct
│   ├── ContextError            a context (a Feature, a row of Arrow) is not valid
│   ├── PlaceError              a place or a hierarchy of places is not valid
│   ├── MessageError            a cast, an item or a wire message is not valid
│   ├── TreeError               a dissemination tree or a placement request is not valid
│   ├── ModulatorError          a modulator is refused, or was stopped
│   ├── ConflictError    [409]  it belongs to somebody else
│   ├── NotFoundError    [404]  it does not exist, or the caller may not see it: both look alike
│   ├── SettingsError           the settings file, or a command-line option, is wrong
│   └── LimitError       [400]  well-formed, but larger, deeper or more than a limit allows
│       └── RateError    [429]  more often than a limit allows; carries when to try again
├── AuthError            [401]  no token, or one that is not valid
│   └── ForbiddenError   [403]  a valid token without the scope that is needed
├── StoreError           [503]  the disk refused; nothing was acknowledged
├── UnreachableError     [503]  a service does not answer, or not as ours does; retry later
└── MissingError         [503]  something this machine lacks; the text says what to install
    └── GroupsUnavailable       this machine cannot join groups (UDP, NATS); the socket is left

We assert against our own mistakes and raise these for the world's.
"""

from typing import ClassVar


class RoamcastError(Exception):
    """Root of everything we refuse; its text is one line that says what to do."""

    status: ClassVar[int] = 400
    title: ClassVar[str] = "Bad Request"


class InputError(RoamcastError):
    """Malformed input, with its file, line and position as far as they are known."""

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
        """Return the same error with the file and line it came from."""
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


class ModulatorError(InputError):
    """A modulator that is refused, or was stopped; the text is the reason."""


class TreeError(InputError):
    """A dissemination tree or a placement request that is not valid."""


class ConflictError(InputError):
    """What was asked for belongs to somebody else."""

    status = 409
    title = "Conflict"


class NotFoundError(InputError):
    """It does not exist, or the caller may not see it: both look alike, so none can be probed."""

    status = 404
    title = "Not Found"


class MovedError(InputError):
    """Another node serves this place; `url` is where, empty if nobody here knows."""

    status = 421
    title = "Misdirected Request"
    url: str = ""

    @classmethod
    def to(cls, place: str, node: str, url: str) -> "MovedError":
        """Say which node serves a place, and where."""
        at = f" at {url}" if url else ""
        who = f"node {node} serves it{at}" if node else "no node that is known here serves it"
        found = cls(f"moved: {place[:100]!r} is not among the places of this node; {who}")
        found.url = url
        return found

    @classmethod
    def read(cls, text: str) -> "MovedError | None":
        """Read what a service refused over a link, where errors are texts; None: another reason."""
        if not text.startswith("moved: "):
            return None
        found = cls(text)
        found.url = text.rpartition(" serves it at ")[2] if " serves it at " in text else ""
        return found


class SettingsError(InputError):
    """Settings that are not valid; the text names the key."""


class LimitError(InputError):
    """Well-formed input beyond a limit; the text names the limit and its value."""

    title = "beyond a limit"


class RateError(LimitError):
    """More often than a limit allows; `retry_us` says when to try again."""

    status = 429
    retry_us: int = 0


class AuthError(RoamcastError):
    """The caller shows no token, or one that is not valid."""

    status = 401
    title = "no valid token"


class ForbiddenError(AuthError):
    """The caller's token is valid and lacks the scope that is needed."""

    status = 403
    title = "no permission"


class StoreError(RoamcastError):
    """The disk refused a write; whoever waited for it must take it as not done."""

    status = 503
    title = "Service Unavailable"


class UnreachableError(RoamcastError):
    """A service that does not answer, or not as ours does; the same may work later."""

    status = 503
    title = "Service Unavailable"


class MissingError(RoamcastError):
    """Something this machine lacks; the text says what to install or where to look."""

    status = 503
    title = "Service Unavailable"


class GroupsUnavailable(MissingError):  # noqa: N818 — a state of this machine, not a mistake
    """This machine cannot join groups by UDP multicast or NATS; the socket is left."""


def _numbered(word: str, number: int | None) -> str | None:
    return None if number is None else f"{word} {number}"
