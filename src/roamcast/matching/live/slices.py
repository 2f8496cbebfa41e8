"""Questions in slices: generators that yield where others may be served, and end in an answer."""

from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeVar

from roamcast.model.contexts import Context

Answer = TypeVar("Answer")
Question = Generator[None, None, Answer]
"""A question under way; its answer comes with StopIteration."""


class ContextPage(NamedTuple):
    """Contexts by vid, and whether more follow."""

    contexts: list[Context]
    more: bool


def run(question: Question[Answer]) -> Answer:
    """Go through all slices of a question."""
    while True:
        try:
            next(question)
        except StopIteration as end:
            answer: Answer = end.value
            return answer


def one_by_one(questions: Sequence[Question[None]]) -> Question[None]:
    """Do several things, one after another."""
    for question in questions:
        yield from question
