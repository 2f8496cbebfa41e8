"""Figure 1 of CBM: a small tree, no filters, filters everywhere, the best three."""

from pathlib import Path

from roamcast.lab._cbm_drawing import draw_tree
from roamcast.lab.report import Report, Steps, near
from roamcast.placement.flows import LeafWants, flows
from roamcast.placement.optimal import Placement, optimal
from roamcast.placement.problem import Problem, traffic
from roamcast.placement.tree import Tree

TITLE = "CBM figure 1: the worked example, 120 units without filters, 50 with all, 63 with three"

# The paper's own tree is lost from the scan. This one has its numbers: 9 recipients A to I
# (vertices 7 to 15), 15 links, 8 items, and with the best 3 filters A to D must filter themselves.
PARENT = [-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 6]
WANTS = {
    7: [1, 3],
    8: [2],
    9: [7],
    10: [2, 5],
    11: [4, 7],
    12: [1, 2, 6],
    13: [5, 7, 8],
    14: [1, 3, 6],
    15: [3, 4],
}


def example() -> Problem:
    """Return the example as a traffic problem."""
    tree = Tree.of(PARENT)
    return traffic(tree, flows(tree, LeafWants.of(tree, WANTS)))


def run(quick: bool, progress: Steps) -> Report:  # noqa: ARG001 (every figure takes both)
    """Place 0 to 7 filters."""
    problem = example()
    rows = []
    costs = []
    for limit in range(8):
        found = optimal(problem, limit)
        costs.append(found.cost)
        rows.append({"k": limit, "traffic": found.cost, "filters": list(found.filters)})
    claims = [
        near(f"traffic with {name}", costs[limit], said, 0)
        for name, limit, said in (
            ("no filter", 0, 120),
            ("the best three", 3, 63),
            ("filters everywhere", 7, 50),
        )
    ]
    return Report("cbm-1", {"vertices": 16, "links": 15, "items": 8}, rows, claims)


def draw(report: Report, path: Path) -> None:
    """Draw the tree with its three filters."""
    row = report.rows[3]
    placement = Placement(tuple(row["filters"]), row["traffic"])
    draw_tree(example(), placement, path, "CBM figure 1: three filters, traffic 63 of 120")
