"""Which operators a delegate took, according to the interpreter's graph."""

from __future__ import annotations

from drivers.litert.placement import GraphNode, place, read_nodes

CHAIN = [
    GraphNode("CONV_2D", (0, 10, 11), (1,)),
    GraphNode("CUSTOM", (1,), (2,)),
    GraphNode("ADD", (2, 1), (3,)),
    GraphNode("SOFTMAX", (3,), (4,)),
]


def test_without_a_delegate_the_built_in_kernels_run_everything() -> None:
    placed = place(CHAIN)
    assert placed.providers == ("built-in kernels",)
    assert placed.note() == "XNNPACK took 0 of 4 operators"
    assert place([]).providers == ("built-in kernels",)
    assert {(one.op, one.provider, one.nodes) for one in placed.reports()} == {
        (node.op, "built-in kernels", 1) for node in CHAIN
    }


def test_a_part_of_the_graph_is_what_leads_from_its_inputs_to_its_outputs() -> None:
    parts = [GraphNode("DELEGATE", (0, 10, 11), (1,)), GraphNode("DELEGATE", (1, 2), (4,))]
    placed = place([*CHAIN, *parts])
    assert (dict(placed.taken), dict(placed.left)) == (
        {"CONV_2D": 1, "ADD": 1, "SOFTMAX": 1},
        {"CUSTOM": 1},
    )
    assert placed.providers == ("XNNPACK", "built-in kernels")
    assert placed.note() == "XNNPACK took 3 of 4 operators, in 2 parts"


def test_a_part_that_gives_values_to_other_kernels_in_its_midst_is_taken_once() -> None:
    whole = GraphNode("DELEGATE", (0, 10, 11, 2), (1, 4))
    placed = place([*CHAIN, whole])
    assert (placed.taken.total(), placed.left.total()) == (3, 1)


def test_a_graph_that_is_a_circle_ends() -> None:
    nodes = [GraphNode("ADD", (1,), (0,)), GraphNode("ADD", (0,), (1,)), GraphNode("DELEGATE", (), (1,))]
    assert place(nodes).taken == {"ADD": 2}


def test_operators_that_keep_something_are_known() -> None:
    details = [{"op_name": "ASSIGN_VARIABLE", "inputs": [1, 2], "outputs": []}]
    assert place(read_nodes(details)).keeps_state
    assert not place(CHAIN).keeps_state
