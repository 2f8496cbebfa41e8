"""`roamcast why CAST --journal FOLDER`: what each node did, though the services are down."""

from pathlib import Path

from typer.testing import CliRunner

from roamcast.cli import build
from roamcast.journal.segments import Segments
from roamcast.model.records import CastStep


def journal(folder: Path, node: str, *steps: tuple[int, CastStep]) -> Path:
    segments = Segments(folder, node)
    segments.add([(time_us, node, step) for time_us, step in steps])
    segments.close()
    return folder


def test_steps_of_one_cast_are_told_in_their_order_over_all_nodes(tmp_path: Path) -> None:
    first = journal(
        tmp_path / "b1",
        "b1",
        (1_000_000, CastStep("c1", "sent, present")),
        (2_000_000, CastStep("c1", "handed on", "b2")),
        (2_500_000, CastStep("other", "found", number=7)),
    )
    second = journal(
        tmp_path / "b2",
        "b2",
        (2_200_000, CastStep("c1", "taken", "b1")),
        (1_500_000, CastStep("c1", "not deposited: no answer", "trust")),
    )
    words = ["--journal", str(first), "--journal", str(second)]
    told = CliRunner().invoke(build(), ["why", "c1", *words])
    assert told.exit_code == 0, told.output
    assert [line.split("  ", 1)[1] for line in told.output.splitlines()] == [
        "b1  sent, present",
        "b2  not deposited: no answer trust",
        "b1  handed on b2",
        "b2  taken b1",
    ]
    assert (
        '"step":"sent, present"'
        in CliRunner().invoke(build(), ["why", "c1", *words, "--json"]).output
    )
    none = CliRunner().invoke(build(), ["why", "c2", *words])
    assert none.exit_code != 0
