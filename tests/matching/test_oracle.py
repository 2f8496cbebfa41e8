"""Every back end answers as an oracle that shares no code with `model` (docs/filters.md)."""

import ast
from pathlib import Path

import pytest

from tests import oracle_filters
from tests.oracle_backends import Tally, differences


def run(seeds: range) -> Tally:
    """Each seed is a round of 1,000 pairs."""
    tally = Tally()
    for seed in seeds:
        found = list(differences(seed, tally=tally))
        assert not found, f"seed {seed}: {len(found)} differences, the first: {found[0]}"
    return tally


def balanced(tally: Tally) -> None:
    pairs = sum(tally.answers.values()) + tally.left_out
    assert tally.left_out < pairs / 100
    assert min(tally.answers.values()) > pairs / 10, tally.answers
    assert min(tally.decided.values()) > pairs / 500, tally.decided
    assert tally.covered > pairs / 500


def test_5_000_pairs_have_one_meaning_in_every_back_end() -> None:
    balanced(run(range(5)))


@pytest.mark.soak
@pytest.mark.parametrize("block", range(8))
def test_200_000_pairs_have_one_meaning_in_every_back_end(block: int) -> None:
    first = 1_000 + 25 * block
    balanced(run(range(first, first + 25)))


def test_the_oracle_shares_no_code_with_what_it_judges() -> None:
    tree = ast.parse(Path(oracle_filters.__file__).read_text())
    names = [
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    ]
    assert {str(name).partition(".")[0] for name in names} <= {
        *("collections", "datetime", "fractions", "itertools", "math", "random", "typing"),
    }


@pytest.mark.parametrize(
    ("point", "shape", "place"),
    [
        ((0.3, 0.1), ("LINESTRING", [(0.0, 0.0), (3.0, 1.0)]), "out"),  # 0.3 is not 3 × 0.1
        ((0.5, 0.25), ("LINESTRING", [(0.0, 0.0), (2.0, 1.0)]), "in"),
        ((2.0, 1.0), ("LINESTRING", [(0.0, 0.0), (2.0, 1.0)]), "on"),
        ((0.5, 0.5), oracle_filters.FIXED[1], "out"),
        ((2.0, 0.5), oracle_filters.FIXED[1], "in"),
        ((1.0, 1.0), oracle_filters.FIXED[3], "in"),
        ((-180.0, 1.0), ("BBOX", (179.0, 0.0, -179.0, 2.0)), "in"),
    ],
)
def test_the_oracle_knows_inside_from_border(
    point: tuple[float, float], shape: oracle_filters.Node, place: str
) -> None:
    assert oracle_filters.where(point, shape) == place
