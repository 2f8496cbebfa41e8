"""The peer of `bench run fanout`: nothing but a `websockets` broadcast on uvloop.

Run as a program: it prints its port, then for each line `RATE SECONDS BYTES` on stdin broadcasts at
that rate, and prints one JSON object when done.
"""

import asyncio
import json
import sys
import time

import uvloop
from websockets.asyncio.server import ServerConnection, broadcast, serve

CONNECTIONS: set[ServerConnection] = set()


async def handler(connection: ServerConnection) -> None:
    CONNECTIONS.add(connection)
    try:
        await connection.wait_closed()
    finally:
        CONNECTIONS.discard(connection)


async def main() -> None:
    loop = asyncio.get_running_loop()
    async with serve(
        handler, "127.0.0.1", 0, compression=None, ping_interval=None, backlog=8_192
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        number = 0
        while True:
            line = (await loop.run_in_executor(None, sys.stdin.readline)).split()
            if not line:
                return
            rate, seconds, size = float(line[0]), float(line[1]), int(line[2])
            start = time.monotonic()
            sent = 0
            while (now := time.monotonic()) - start < seconds:
                due = start + sent / rate
                if due > now:
                    await asyncio.sleep(due - now)
                number += 1
                head = f'{{"sent":{time.monotonic_ns()},"n":{number},"x":"'
                broadcast(CONNECTIONS, head + "x" * (size - len(head) - 2) + '"}')
                sent += 1
                await asyncio.sleep(0)
            sys.stdout.write(json.dumps({"sent": sent, "last": number}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(main())
