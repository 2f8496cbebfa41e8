"""What subscriptions cost every update by anybody: a budget for each subject (0095)."""

from collections.abc import Callable

from roamcast.errors import LimitError
from roamcast.model.filters import Filter


class Standing:
    """The standing costs of each subject's subscriptions, over all its clients and sessions."""

    def __init__(self, steps_max: int) -> None:
        self._steps_max = steps_max
        self._held: dict[str, int] = {}
        self.others: Callable[[], int] = lambda: 0
        """How many subscriptions other parts have that are counted here, too."""

    def __len__(self) -> int:
        return len(self._held)

    def held(self, client: str) -> int:
        """Give what the subscriptions of a client's subject cost."""
        return self._held.get(subject_of(client), 0)

    def occupancy(self) -> dict[str, tuple[int, int]]:
        """The dearest subject, and the bound of each that is no relay."""
        return {"standing steps": (max(self._held.values(), default=0), self._steps_max)}

    def check(self, client: str, wanted: Filter, times: int = 1) -> None:
        """Refuse a subscription that its subject's budget does not cover; a relay has `times`."""
        held, most = self.held(client), self._steps_max * times
        if held + wanted.standing_steps > most:
            raise LimitError(
                f"this subscription may cost every update {wanted.standing_steps:,} steps, and "
                f"{held:,} of {most:,} are in use: end some, or ask for less"
            )

    def add(self, client: str, wanted: Filter) -> None:
        """Count a subscription in."""
        subject = subject_of(client)
        self._held[subject] = self._held.get(subject, 0) + wanted.standing_steps

    def give_back(self, client: str, wanted: Filter) -> None:
        """Count a subscription out."""
        left = self.held(client) - wanted.standing_steps
        assert left >= 0, "given back more than was counted in"
        if left:
            self._held[subject_of(client)] = left
        else:
            self._held.pop(subject_of(client), None)


def subject_of(client: str) -> str:
    """Give who is behind a client's or session's name, `subject#device`."""
    return client.partition("#")[0]
