"""A real `roamcast relay` of a running service, in a process of its own."""

from pathlib import Path

from tests.running_service import RunningService


class RunningRelay(RunningService):
    """Started when entered, ended by SIGTERM when left."""

    def __init__(
        self,
        folder: Path,
        service: RunningService,
        settings: str = "",
        *arguments: str,
        token: str = "",
    ) -> None:
        """`token`: the relay's own; the service's operator's without one."""
        super().__init__(folder, settings, data=service.data)
        self.operator = token or service.operator
        self._arguments = [service.url, "--token", self.operator, *arguments]

    def words(self) -> list[str]:
        """Give the command and its options."""
        words = ["relay", *self._arguments, "--json", "--settings", str(self._settings)]
        return [*words, "--listen", f"127.0.0.1:{self.port}"]

    def held(self, what: str) -> float:
        """Read one of the relay's numbers."""
        answer = self.ask("GET", "/metrics", self.operator)
        assert answer.status == 200, answer
        line = f'roamcast_held{{what="{what}"}} '
        lines = answer.body.decode().splitlines()
        return float(next(one.removeprefix(line) for one in lines if one.startswith(line)))
