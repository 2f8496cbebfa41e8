"""`roamcast place` answers as DESIGN.md's formats say, and as exhaustive search says."""

import json
import random
import re
import shlex
import sys
from pathlib import Path

import pytest

from roamcast import cli
from tests.strategies_placement import (
    EXAMPLE_PARENT,
    EXAMPLE_WANTS,
    placements,
    random_parents,
    random_wants,
    sent_delay,
    sent_traffic,
)

DOCS = Path(__file__).parents[2] / "docs" / "placement.md"


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command as a person would; give exit code, output and errors."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["roamcast", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.fixture
def example(tmp_path) -> Path:
    path = tmp_path / "tree.json"
    _write(path, EXAMPLE_PARENT, EXAMPLE_WANTS)
    return path


def _write(path: Path, parent: list[int], wants: dict[int, list[int]], **more: object) -> None:
    named = {str(leaf): items for leaf, items in wants.items()}
    path.write_text(json.dumps({"parent": parent, "wants": named, **more}))


def test_the_worked_example(run, example):
    code, out, _ = run("place", example, "--filters", 3, "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer == {
        "filters": [1, 5, 6],
        "traffic": 63,
        "without_filters": 120,
        "with_all_filters": 50,
    }
    code, out, _ = run("place", example, "--filters", 3)
    assert re.search(r"^traffic +63$", out, re.MULTILINE)


@pytest.mark.slow
def test_the_command_equals_exhaustive_search(run, tmp_path):
    """Fewer trees than in tests/placement, where the same optimiser is tried on 300."""
    source = random.Random(7)
    path = tmp_path / "tree.json"
    for kind in ("binary", "any", "path", "star") * 2:
        parent = random_parents(source, source.randint(1, 12), kind)
        wants = random_wants(source, parent, 8, 0.3)
        limit = source.randint(0, 8)
        filter_delay, link_delay = source.choice([0, 1, 4]), source.choice([1, 3])
        _write(path, parent, wants, link_delay=link_delay)
        traffic = json.loads(run("place", path, "--filters", limit, "--json")[1])
        least = min(sent_traffic(parent, wants, chosen) for chosen in placements(parent, limit))
        assert traffic["traffic"] == least == sent_traffic(parent, wants, traffic["filters"])
        assert len(traffic["filters"]) <= limit
        delay = json.loads(run("place", path, "--filter-delay", filter_delay, "--json")[1])
        tried = [
            sent_delay(parent, wants, chosen, filter_delay, link_delay)
            for chosen in placements(parent)
        ]
        here = sent_delay(parent, wants, delay["filters"], filter_delay, link_delay)
        assert delay["delay"] == min(tried) == here
        heuristic = json.loads(run("place", path, "--filters", limit, "--heuristic", "--json")[1])
        assert heuristic["traffic"] == sent_traffic(parent, wants, heuristic["filters"]) >= least


def test_all_63_of_cbms_tree_count_the_root(run, tmp_path):
    parent = [-1, *[(vertex - 1) // 2 for vertex in range(1, 127)]]
    path = tmp_path / "tree.json"
    _write(path, parent, {leaf: [leaf] for leaf in range(63, 127)})
    answer = json.loads(run("place", path, "--filters", 63, "--json")[1])
    assert answer["filters"] == list(range(63))
    assert answer["traffic"] == answer["with_all_filters"] == 64 * 6


def test_flows_and_stdin(run, monkeypatch, tmp_path):
    text = json.dumps({"parent": [-1, 0, 0], "flow": [2.5, 2.5, 0.5]}).encode()

    class Input:
        class buffer:  # noqa: N801 (the name that sys.stdin has)
            read = staticmethod(lambda: text)

    monkeypatch.setattr(sys, "stdin", Input)
    answer = json.loads(run("place", "-", "--filters", 1, "--json")[1])
    assert (answer["filters"], answer["traffic"]) == ([0], 3)


def test_a_step_from_an_earlier_answer_says_what_to_signal(run, example, tmp_path):
    earlier = tmp_path / "answer.json"
    earlier.write_text('{"filters": [2, 3, 6]}')
    one = json.loads(
        run("place", example, "--filters", 3, "--heuristic", "--from", earlier, "--json")[1]
    )
    assert len(set(one["filters"]) - {2, 3, 6}) == 1
    assert [signal["kind"] for signal in one["signals"]] == ["migrate"]
    best = json.loads(run("place", example, "--filters", 3, "--from", earlier, "--json")[1])
    assert best["filters"] == [1, 5, 6]
    assert best["signals"] == [
        {"kind": "migrate", "source": 2, "target": 5},
        {"kind": "migrate", "source": 3, "target": 1},
    ]
    dear = run("place", example, "--filters", 3, "--from", earlier, "--move-cost", 50, "--json")[1]
    assert json.loads(dear)["filters"] == [2, 3, 6]
    out = run("place", example, "--filters", 3, "--from", earlier)[1]
    assert "signals           migrate 2 → 5; migrate 3 → 1" in out


def test_the_curve_and_a_price_per_filter(run, example):
    answer = json.loads(run("place", example, "--curve", "--json")[1])
    assert answer["curve"][0] == 120
    assert answer["curve"][3] == 63
    assert answer["curve"][-1] == answer["traffic"] == 50
    priced = json.loads(run("place", example, "--filter-cost", 10, "--json")[1])
    totals = [cost + 10 * count for count, cost in enumerate(answer["curve"])]
    assert priced["cost"] == min(totals) == priced["traffic"] + 10 * len(priced["filters"])


def test_traffic_and_delay_together(run, example):
    both = json.loads(
        run("place", example, "--filter-delay", 2, "--traffic-weight", 3, "--json")[1]
    )
    assert both["cost"] == both["delay"] + 3 * both["traffic"]
    assert both["mean_delay"] == pytest.approx(both["delay"] / 9)
    limited = json.loads(run("place", example, "--filter-delay", 0, "--filters", 1, "--json")[1])
    assert len(limited["filters"]) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give the number of filters (--filters K) or the delay of one (--filter-delay F)"),
        (["--filters", "-1"], "number of filters is -1"),
        (["--filter-delay", "nan"], "the filter delay is nan"),
        (["--filter-delay", "-3"], "the filter delay is -3"),
        (["--filters", "1", "--traffic-weight", "1"], "give --filter-delay as well"),
        (["--filters", "1", "--move-cost", "1"], "--move-cost needs --from"),
        (["--filters", "1", "--from", "nowhere.json"], "nowhere.json: cannot be read"),
        (["--filters", "1", "--draw", "tree.txt"], "must end in .png, .svg, .pdf"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_2(run, example, arguments, said):
    code, out, err = run("place", example, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_broken_file_is_named(run, tmp_path):
    path = tmp_path / "broken.json"
    path.write_text('{"parent": [-1, 2, 1], "wants": {}}')
    code, _, err = run("place", path, "--filters", 1)
    assert code == 2
    assert "broken.json: no root is above vertex 1: a cycle runs 1 → 2 → 1" in err
    assert run("place", tmp_path / "absent.json", "--filters", 1)[0] == 2


@pytest.mark.parametrize("vertices", [1, 127, 3000])
def test_the_drawing_is_a_picture(run, tmp_path, vertices):
    path, picture = tmp_path / "tree.json", tmp_path / "tree.png"
    source = random.Random(vertices)
    parent = random_parents(source, vertices, "binary")
    _write(path, parent, random_wants(source, parent, 30, 0.05))
    assert run("place", path, "--filters", 60, "--draw", picture)[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_deep_tree_with_many_filters_is_folded_into_few_spots(tmp_path):
    from roamcast.lab import _cbm_drawing as drawing
    from roamcast.placement.cost import stand
    from roamcast.placement.flows import LeafWants, flows
    from roamcast.placement.optimal import optimal
    from roamcast.placement.problem import traffic
    from roamcast.placement.tree import Tree

    parent = [-1, *[vertex - 2 if vertex % 2 == 0 else vertex - 1 for vertex in range(1, 4001)]]
    source = random.Random(1)
    tree = Tree.of(parent)
    wants = random_wants(source, parent, 40, 0.02)
    problem = traffic(tree, flows(tree, LeafWants.of(tree, wants)))
    found = optimal(problem, 300)
    standing = stand(problem, tree.flags(found.filters))
    spots = drawing._spots(problem, standing, drawing._drawn(problem, standing))
    assert len(spots) <= drawing.DRAWN_MAX
    assert max(spot.level for spot in spots.values()) <= drawing.LEVELS_MAX
    # Nothing is lost by folding: every vertex and every filter is drawn or counted somewhere.
    counted = sum(1 + spot.folded + spot.skipped for spot in spots.values())
    assert counted == tree.vertices
    drawn = sum(bool(standing.filters[place]) for place in spots)
    assert drawn + sum(spot.folded_filters for spot in spots.values()) == len(found.filters)


@pytest.mark.slow
@pytest.mark.skipif(not DOCS.exists(), reason="the page is not there")
def test_the_commands_of_the_page_print_what_it_shows(run, tmp_path, monkeypatch):
    """Every ``console`` block: a line with $ is run, the lines below it are what it prints."""
    monkeypatch.chdir(tmp_path)
    text = DOCS.read_text(encoding="utf-8")
    trees = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    for name, tree in zip(("tree.json", "later.json"), trees, strict=True):
        (tmp_path / name).write_text(tree)
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    shown = 0
    for block in blocks:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            words = shlex.split(command)
            into = None
            if ">" in words:
                into = words[words.index(">") + 1]
                words = words[: words.index(">")]
            assert words[0] == "roamcast"
            code, out, err = run(*words[1:])
            assert code in (0, 2)
            if into:
                (tmp_path / into).write_text(out)
                out = ""
            assert (out + err).split() == expected.split(), command
            shown += 1
    assert shown >= 5
