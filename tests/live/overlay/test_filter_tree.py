"""Seven services as a tree: every item reaches exactly those who want it while brokers die."""

import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.overlay_services import View, overlay, settings, tree, until

pytestmark = [pytest.mark.process, pytest.mark.soak]

PARENTS = {"a": "", "b": "a", "c": "a", "d": "b", "e": "b", "f": "c", "g": "c"}
MAJORS = ("rail", "road", "sea", "air")


@pytest.mark.parametrize("filters", ["all", "2", "0"])
def test_every_item_reaches_exactly_those_who_want_it(tmp_path: Path, filters: str) -> None:
    drawn = random.Random(filters)
    more = f'filters = "{filters}"\n'
    with ExitStack() as within:
        nodes = tree(
            tmp_path, PARENTS, within, lambda name, *near: settings(name, *near, more=more)
        )
        for node in nodes.values():
            until(lambda node=node: len(overlay(node)["graph"]) == 7, "a node is not in reach")
        held = {
            name: within.enter_context(node.session(node.operator))
            for name, node in nodes.items()
            if name in "adg"
        }
        wanted = {name: tuple(drawn.sample(MAJORS, 2)) for name in held}
        views = {
            name: View(held[name], f"major IN ('{one}', '{other}')")
            for name, (one, other) in wanted.items()
        }
        right: dict[str, tuple[str, int]] = {}
        for number in range(60):
            if number in (20, 40):  # a broker in the middle dies, then the root of a half
                killed = nodes["e" if number == 20 else "c"]
                killed.kill()
                killed.start()
            node = nodes[drawn.choice("bcef")]
            major, minor = drawn.choice(MAJORS), str(drawn.randrange(6))
            path = f"/items/{major}/{node.port}-{minor}"
            if drawn.random() < 0.25:
                right.pop(path, None)
                assert node.ask("DELETE", path, node.operator).status in (204, 404)
            else:
                right[path] = (major, number)
                body = {"subkeys": [["integer", "number", number]]}
                assert node.ask("PUT", path, node.operator, body).status in (200, 201)
            for view in views.values():
                view.read(0)
        for name, view in views.items():
            owed = sorted(number for major, number in right.values() if major in wanted[name])
            view.until(
                lambda seen, owed=owed: sorted(one["number"] for one in seen.values()) == owed,
                f"{name} does not see {owed}",
            )
