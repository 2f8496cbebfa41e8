"""TREE.json: what is right is read, what is wrong is one line that names it."""

import json

import pytest

from roamcast.errors import InputError, LimitError, TreeError
from roamcast.placement import document as module
from roamcast.placement.document import read_demand, read_filters
from tests.strategies_placement import EXAMPLE_PARENT, EXAMPLE_WANTS


def _text(**keys: object) -> bytes:
    return json.dumps(keys).encode()


def test_wants_become_flows():
    demand = read_demand(_text(parent=[-1, 0, 0], wants={"1": [5, 5, 6], "2": [6]}))
    assert list(demand.flow) == [2, 2, 1]
    assert (demand.items, demand.link_delay) == (2, 1.0)


def test_flows_and_the_delay_of_a_link_may_be_given():
    demand = read_demand(_text(parent=[-1, 0, 0], flow=[4, 2.5, 3], link_delay=0.25))
    assert list(demand.flow) == [4, 2.5, 3]
    assert (demand.items, demand.link_delay) == (None, 0.25)


def test_a_leaf_that_is_not_named_wants_nothing():
    assert list(read_demand(_text(parent=[-1, 0, 0], wants={"1": [5]})).flow) == [1, 1, 0]


def test_the_example_is_read_whatever_its_spacing():
    wants = {str(leaf): items for leaf, items in EXAMPLE_WANTS.items()}
    tight = json.dumps({"parent": EXAMPLE_PARENT, "wants": wants}, separators=(",", ":"))
    loose = json.dumps({"parent": EXAMPLE_PARENT, "wants": wants}, indent=7).replace(":", " \n:")
    assert list(read_demand(tight.encode()).flow) == list(read_demand(loose.encode()).flow)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "not a tree file"),
        (b"[]", "Expected `object`"),
        (b'{"parent": [-1, 0', "not a tree file"),
        (b'{"parent": [-1, NaN], "flow": [1, 1]}', "not a tree file"),
        (b'{"parent": [-1, 0], "flow": [1, NaN]}', "not a tree file"),
        (b'{"parent": [-1, 0], "flow": [1, 1e999]}', "not a tree file|vertex 1 is inf"),
        (b"\xff\xfe", "not a tree file"),
        (b"[" * 100_000, "not a tree file"),
        (_text(wants={}), "missing required field `parent`"),
        (_text(parent=[-1, 0]), 'neither "wants".* nor "flow"'),
        (_text(parent=[-1, 0], wants={}, flow=[1, 1]), 'both "wants" and "flow"'),
        (_text(parent=[-1, 0], want={}), "unknown field `want`"),
        (_text(parent=[-1, "0"], wants={}), r"Expected `int`, got `str` - at `\$.parent\[1\]`"),
        (_text(parent=[-1, 2**80], wants={}), "not a tree file"),
        (_text(parent=[], wants={}), "no vertices"),
        (_text(parent=[-1, 2, 1], wants={}), "a cycle runs 1 → 2 → 1"),
        (_text(parent=[-1, -1], wants={}), "vertices 0 and 1 are both roots"),
        (_text(parent=[-1, 5], wants={}), "vertex 1 has parent 5, which is missing"),
        (_text(parent=[-1, 0], wants={"0": [1]}), "vertex 0 is not a leaf"),
        (_text(parent=[-1, 0], wants={"2": [1]}), "vertex 2 is not in the tree"),
        (_text(parent=[-1, 0], wants={"-1": [1]}), "'-1', which is not a vertex number"),
        (_text(parent=[-1, 0], wants={"01": [1]}), "'01', which is not a vertex number"),
        (_text(parent=[-1, 0], wants={"one": [1]}), "'one', which is not a vertex number"),
        (_text(parent=[-1, 0], wants={"9" * 99: [1]}), "not a vertex number"),
        (_text(parent=[-1, 0], wants={"1": ["a"]}), "Expected `int`, got `str`"),
        (_text(parent=[-1, 0], wants={"1": 5}), "Expected `array`, got `int`"),
        (_text(parent=[-1, 0], flow=[1]), "1 flows for 2 vertices"),
        (_text(parent=[-1, 0], flow=[1, 2]), "vertex 1 has flow 2, more than its parent 0"),
        (_text(parent=[-1, 0], flow=[1, -1]), "flow of vertex 1 is -1"),
        (_text(parent=[-1, 0], wants={}, link_delay=-1), '"link_delay" is -1'),
        (b'{"parent": [-1, 0], "wants": {"1": [1], "1" : [2]}}', "'1' is given twice"),
        (b'{"parent": [-1, 0], "parent": [-1], "wants": {}}', "'parent' is given twice"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text, said):
    with pytest.raises(TreeError, match=said) as caught:
        read_demand(text)
    assert "\n" not in str(caught.value)


def test_a_file_has_a_largest_size(monkeypatch):
    text = _text(parent=[-1, 0], wants={"1": [1]})
    monkeypatch.setattr(module, "BYTES_MAX", len(text))
    read_demand(text)
    with pytest.raises(LimitError, match="bytes; the limit is"):
        read_demand(text + b" ")
    with pytest.raises(LimitError, match="bytes; the limit is"):
        read_filters(text + b" ")


def test_an_earlier_answer_gives_its_filters():
    assert read_filters(b'{"filters": [4, 1, 4], "traffic": 9}') == (1, 4)
    with pytest.raises(InputError, match="missing required field `filters`"):
        read_filters(b'{"traffic": 9}')
