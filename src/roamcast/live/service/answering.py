"""Questions in slices under asyncio: others are served between two slices."""

import asyncio
from typing import TypeVar

from roamcast.matching.live.slices import Question

Answer = TypeVar("Answer")


async def answered(question: Question[Answer]) -> Answer:
    """Go through the slices of a question, and let everybody else through between two of them."""
    while True:
        try:
            next(question)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        await asyncio.sleep(0)
