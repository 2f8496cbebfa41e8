"""`roamcast swarm` as a person or a script uses it."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from roamcast.channels.reliable.receiver import ChannelReceiver
from roamcast.cli import build
from roamcast.errors import InputError
from roamcast.journal.segments import read_entries
from roamcast.sim.workload import Make
from roamcast.sim.workloads import channel

runner = CliRunner()


def swarm(*arguments: str) -> tuple[int, str]:
    done = runner.invoke(build(), ["swarm", *arguments])
    if isinstance(done.exception, Exception):
        raise done.exception
    return done.exit_code, done.stdout


def test_seeds_that_keep_every_promise_exit_zero() -> None:
    code, said = swarm("--seeds", "3", "--only", "channel", "--workers", "1")
    assert code == 0
    assert "3 runs" in said
    assert "every promise was kept" in said


def test_json_is_one_object_with_totals() -> None:
    code, said = swarm(
        "--seeds", "3", "--first", "5", "--only", "channel", "--workers", "1", "--json"
    )
    found = json.loads(said)
    assert code == 0
    assert found["seeds"] == 3
    assert found["failed"] is False
    assert found["failure"] is None
    assert found["totals"]["delivered"] > 0


def test_one_seed_is_shown_whole_and_narrowed_and_leaves_a_journal(tmp_path: Path) -> None:
    code, said = swarm("--seed", "7", "--only", "channel", "--journal", str(tmp_path))
    assert code == 0
    assert "digest" in said
    assert "channel seed 7: every promise was kept" in said
    assert len(list(read_entries(tmp_path, "channel-7"))) > 10
    options = ("--set", "receivers=1", "--set", "duration_ms=100", "--faults", "none", "--json")
    code, said = swarm("--seed", "7", "--only", "channel", *options)
    found = json.loads(said)
    assert found["scenario"]["sizes"]["receivers"] == 1
    assert found["scenario"]["faults"] == []
    assert found["scenario"]["duration_us"] == 100_000


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(ChannelReceiver):
        def _notice(self, first: int, last: int, now: int) -> None:
            pass

    def make() -> channel.ChannelWorkload:
        return channel.ChannelWorkload(receiver=Deaf)

    made: Make = make
    monkeypatch.setattr(channel, "WORKLOAD", made)


@pytest.mark.usefixtures("broken")
def test_a_failing_seed_is_printed_with_a_command_that_shows_it_again() -> None:
    code, said = swarm("--seeds", "50", "--only", "channel", "--workers", "1")
    assert code == 1
    assert "FAILS: liveness" in said
    assert "the journal's last lines:" in said
    (command,) = [line.split() for line in said.splitlines() if "roamcast swarm --seed" in line]
    code, again = swarm(*command[2:])
    assert code == 1
    assert "liveness" in again


@pytest.mark.usefixtures("broken")
def test_a_failure_is_in_the_json_too() -> None:
    code, said = swarm("--seeds", "50", "--only", "channel", "--workers", "1", "--json")
    found = json.loads(said)
    assert code == 1
    assert found["failed"] is True
    assert found["command"].startswith("roamcast swarm --seed")
    assert found["failure"]["outcome"]["tail"]


@pytest.mark.usefixtures("broken")
def test_keep_going_reports_each_promise_once_and_runs_every_seed() -> None:
    options = ("--seeds", "12", "--only", "channel", "--workers", "1", "--keep-going")
    code, said = swarm(*options)
    assert code == 1
    assert "12 runs in" in said
    assert said.count("FAILS: liveness") == 1
    assert "1 promises broken" in said
    code, said = swarm(*options, "--json")
    found = json.loads(said)
    assert (found["seeds"], found["runs"]) == (12, {"channel": 12})
    assert 1 < found["failed_runs"] <= 12
    assert [one["promise"] for one in found["failures"]] == ["liveness"]


def test_minutes_end_a_swarm_and_the_rate_is_printed() -> None:
    code, said = swarm("--minutes", "0.01", "--only", "channel", "--workers", "1")
    assert code == 0
    assert "seeds a second" in said
    assert re.search(r"the largest process holds [1-9][0-9]* MB\n", said)


def test_a_shard_runs_its_part_of_the_seeds() -> None:
    code, said = swarm(
        "--seeds", "9", "--shard", "2/4", "--only", "channel", "--workers", "1", "--json"
    )
    assert code == 0
    assert json.loads(said)["seeds"] == 2  # the seeds 1 and 5


@pytest.mark.parametrize(
    "arguments",
    [
        ("--minutes", "0"),
        ("--minutes", "1e9"),
        ("--shard", "0/4"),
        ("--shard", "5/4"),
        ("--shard", "1"),
        ("--workers", "-1"),
        ("--first", "-1"),
        ("--seed", "1", "--minutes", "1"),
        ("--seed", "1", "--shard", "1/2"),
        ("--only", "nothing"),
        ("--seeds", "0"),
        ("--seeds", "10000001"),
        ("--set", "receivers=1"),
        ("--faults", "none"),
        ("--seed", "1", "--set", "receivers"),
        ("--seed", "1", "--set", "receivers=few"),
        ("--seed", "1", "--set", "nothing=1"),
        ("--seed", "1", "--faults", "first"),
        ("--seed", "1", "--faults", "99"),
        ("--seed", "-1"),
    ],
)
def test_what_cannot_be_run_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(InputError):
        swarm(*arguments)
