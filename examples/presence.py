"""Watch the kitchen on a screen while Ada walks in and out.

Start a service with `roamcast serve`, then run this in the same folder.
"""
# ruff: noqa: T201 — an example prints

import asyncio

from roamcast.client import connect


async def main() -> None:
    """Run both devices in one program."""
    async with connect() as ada, connect() as screen:
        async for change in screen.watch("type = 'person' AND place = 'hq/2/kitchen'"):
            print(change.kind, change.context.attributes if change.context else "")
            match change.kind:
                case "current":
                    await ada.appear(place="hq/2/kitchen", type="person", name="Ada")
                case "appeared":
                    await ada.change(mood="hungry")
                case "changed":
                    await ada.change(place="hq/2/hall")
                case "left":
                    break


asyncio.run(main())
