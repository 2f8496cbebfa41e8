"""`roamcast cast` refuses each bad cast in one clear line, and nothing is sent."""

import io
import json
import sys
import time
from collections.abc import Iterator

import pytest

from roamcast import cli
from roamcast.live.auth.admission import TokenKeys
from roamcast.live.auth.authority import CastAuthority
from roamcast.model.casts import PAYLOAD_BYTES_MAX
from tests.running_service import RunningService

pytestmark = pytest.mark.process

HQ = "within(place, 'hq')"
WINDOW = "overlaps(time, INTERVAL('{}', '{}'))"
UPSIDE_DOWN = WINDOW.format("2026-11-10T17:00:00Z", "2026-11-10T15:00:00Z")
ZONELESS = WINDOW.format("2026-11-10T15:00:00", "2026-11-10T17:00:00")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(tmp_path_factory.mktemp("service")) as running:
        yield running


class Terminal:
    """The command line of an ordinary sender, who may cast to hq."""

    def __init__(
        self,
        running: RunningService,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        token = TokenKeys.open(running.data).issue(
            "ann",
            ("cast",),
            lifetime_s=600,
            now=time.time_ns() // 1000,
            cast=CastAuthority(("hq",)),
        )
        monkeypatch.setenv("ROAMCAST_URL", running.url)
        monkeypatch.setenv("ROAMCAST_TOKEN", token)
        self._running, self._monkeypatch, self._capsys = running, monkeypatch, capsys

    def run(self, *words: str, stdin: str = "") -> tuple[int, str, str]:
        """Run a command; give its exit code, and what it wrote to stdout and stderr."""
        self._monkeypatch.setattr(sys, "argv", ["roamcast", *words])
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = self._capsys.readouterr()
        return int(str(end.value.code)), out, err

    def sent(self) -> list[str]:
        """Name the casts that the audit log says were sent."""
        lines = [
            json.loads(line)
            for path in sorted((self._running.data / "audit").glob("*.jsonl"))
            for line in path.read_text().splitlines()
        ]
        return [line["cast"] for line in lines if line["act"] == "sent"]


@pytest.fixture
def terminal(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    return Terminal(service, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("words", "stdin", "why"),
    [
        pytest.param(
            ("--where", "type = 'person'", "hello"), "",
            "the filter names no place, and only administrators cast to the whole world",
            id="no area",
        ),
        pytest.param(
            ("--where", f"{HQ} AND {UPSIDE_DOWN}", "hello"), "",
            "an INTERVAL ends before it starts", id="an interval upside down",
        ),
        pytest.param(
            ("--where", f"{HQ} AND {ZONELESS}", "hello"), "", "has no time zone", id="no time zone",
        ),
        pytest.param(
            ("--where", HQ, "-"), "x" * (PAYLOAD_BYTES_MAX + 1),
            f"the payload exceeds the limit of {PAYLOAD_BYTES_MAX} bytes", id="too large",
        ),
        pytest.param(
            ("--where", "within(place, 'lab')", "hello"), "",
            "lab is not granted: your token has hq", id="an area not granted",
        ),
        pytest.param(
            ("--where", "TRUE", "hello"), "", "only administrators cast to the whole world",
            id="the whole world",
        ),
    ],
)  # fmt: skip
def test_a_bad_cast_is_refused_in_one_line_and_nothing_is_sent(
    terminal: Terminal, words: tuple[str, ...], stdin: str, why: str
) -> None:
    before = terminal.sent()
    code, out, err = terminal.run("cast", *words, stdin=stdin)
    assert (code, out) == (2, "")
    assert err.startswith("roamcast: ")
    assert err.count("\n") == 1
    assert why in err
    assert terminal.sent() == before


def test_a_cancelled_cast_is_not_cancelled_again(terminal: Terminal) -> None:
    later = WINDOW.format("2030-11-10T15:00:00Z", "2030-11-10T17:00:00Z")
    code, out, _ = terminal.run("cast", "--where", f"{HQ} AND {later}", "hello", "--json")
    assert code == 0
    name = json.loads(out)["id"]
    assert terminal.run("cast", "--cancel", name)[:2] == (0, f"cancelled {name}\n")
    code, out, err = terminal.run("cast", "--cancel", name)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "cancelled before" in err or "it is over" in err
    assert terminal.sent()[-1] == name
