"""A standing query on a terminal: a table of the current set, the latest change on top."""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from roamcast.client import Change, Session, View, connect
from roamcast.commands._service import HEADS, cells
from roamcast.model.contexts import Context
from roamcast.model.filters import Filter

REFRESH_S: Final = 0.2
FRESH_S: Final = 2.0
"""How long a change is highlighted."""

STYLES: Final = {"appeared": "bold green", "changed": "bold yellow", "left": "dim strike"}


class Board:
    """The rows of the table: at most as many as the terminal has, the latest change first."""

    def __init__(self, rows_max: int) -> None:
        self.rows_max = rows_max
        self.counts = {"appeared": 0, "changed": 0, "left": 0}
        self._rows: dict[str, tuple[Context, str, float]] = {}
        """vid → context, its last change, and until when that is highlighted."""

    def add(self, change: Change, now: float) -> None:
        """Apply a change."""
        if change.context is None:
            return
        self.counts[change.kind] += 1
        self._rows.pop(change.vid, None)  # moves it to the end, which is drawn first
        self._rows[change.vid] = (change.context, change.kind, now + FRESH_S)

    def draw(self, title: str, now: float) -> Table:
        """Draw the table; a context that left is struck out for a moment, then removed."""
        table = Table(*HEADS, title=title, title_justify="left", expand=True)
        gone = [vid for vid, row in self._rows.items() if row[1] == "left" and row[2] <= now]
        for vid in gone:
            del self._rows[vid]
        for drawn, (context, kind, until) in enumerate(reversed(self._rows.values())):
            if drawn == self.rows_max:
                table.add_row(*["…"] * len(HEADS))
                break
            style = STYLES[kind] if until > now else ""
            table.add_row(
                *[Text(cell, style=style, overflow="ellipsis") for cell in cells(context)]
            )
        return table


async def show(query: Filter, data: Path | None, most: int, console: Console | None = None) -> None:
    """Follow a query on a terminal, for at most `most` changes; 0: without end."""
    console = console or Console()
    async with connect(data=data) as me, me.watch(query) as view:
        board = Board(max(1, console.height - 8))
        with Live(console=console, auto_refresh=False) as live:
            drawing = asyncio.create_task(_draw(live, board, me, view))
            try:
                await _read(view, board, most)
            finally:
                drawing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await drawing
                live.update(_screen(board, me, view), refresh=True)


async def _read(view: View, board: Board, most: int) -> None:
    loop = asyncio.get_running_loop()
    seen = 0
    async for change in view:
        board.add(change, loop.time())
        seen += 1
        if seen == most:
            return


async def _draw(live: Live, board: Board, me: Session, view: View) -> None:
    while True:
        live.update(_screen(board, me, view), refresh=True)
        await asyncio.sleep(REFRESH_S)


def _screen(board: Board, me: Session, view: View) -> Group:
    counts = ", ".join(f"{count:,} {kind}" for kind, count in board.counts.items())
    state = "" if me.connected else " · the service is unreachable, retrying"
    table = board.draw(view.filter.source, asyncio.get_running_loop().time())
    return Group(table, Text(f"{len(view.contexts):,} there now · {counts}{state}"))
