"""The process that replays for a service: a task on stdin, its answer on stdout.

A process of its own, at low priority, because a replay takes seconds of pure computing, and the
service's loop shares an interpreter with its threads.
"""

import os
import sys

import msgspec

from roamcast.errors import RoamcastError
from roamcast.live.what_if.comparing import ReplayTask, answer

REFUSED = 3
"""Exit code of a task that is refused; its reason is on stdout."""


def main() -> None:
    """Answer one task."""
    os.nice(10)
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ReplayTask)
    try:
        text = msgspec.json.encode(answer(task))
    except RoamcastError as error:
        sys.stdout.write(str(error))
        sys.exit(REFUSED)
    sys.stdout.buffer.write(text)


if __name__ == "__main__":
    main()
