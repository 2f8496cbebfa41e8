"""Find the nearest printer: publish three that stay on the map, then query.

Start a service with `roamcast serve`, then run this in the same folder.
"""
# ruff: noqa: T201 — an example prints

import asyncio

from roamcast.client import connect
from roamcast.model.contexts import Context

PRINTERS = {"north": (9.1072, 48.7454), "south": (9.1069, 48.7421), "gate": (9.1010, 48.7440)}


async def main() -> None:
    """Publish, then ask."""
    async with connect() as me:
        for name, point in PRINTERS.items():
            attributes = {"type": "printer", "name": name}
            await me.put(Context(f"printer-{name}", "campus", point, attributes, me.now()))
        here = (9.1066, 48.7425)
        for found in await me.nearest(here, "type = 'printer'", count=2):
            print(f"{found.metres:.0f} m to the printer {found.context.attributes['name']}")
        print(await me.count("type = 'printer'"), "printers on the map")


asyncio.run(main())
