"""What is on the map goes to another broker: publications and views, within the client's limit."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from roamcast.client.runner import Runner
from roamcast.model.contexts import Context

FAREWELL_S: Final = 1.0
"""How long somebody who goes waits for the service to take the departures."""

LIMIT_S: Final = 1.0
"""With a limit, nothing comes for so long between two brokers: it counts in any second."""


async def withdraw(runner: Runner) -> None:
    """Take everything off the map; who does not answer will notice the silence."""
    with suppress(TimeoutError):
        async with asyncio.timeout(FAREWELL_S):
            vids = list(runner.published)
            for vid in vids:
                runner.unpublish(vid)
            for vid in vids:
                await runner.taken(vid)


async def go_on(published: Iterable[Context], old: Runner, made: Runner) -> None:
    """Publish at another broker, and let views go on there."""
    feeds = old.give_up()
    made.adopt(feeds)
    for one in published:  # what is refused there has its place elsewhere
        made.publish(one)
    if not made.limited:
        made.follow(feeds)
    await old.stop()
    if made.limited:  # the two would send more than the limit in some second
        await asyncio.sleep(LIMIT_S)
        made.follow(feeds)
