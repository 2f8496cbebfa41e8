"""How are nodes joined? Trees, trade-off graphs, cell grids, radio graphs; numbers and links.

In: sizes, parameters and a seeded numpy generator. Out: a `Topology` (or a `CellGrid`), the same
for the same seed. Path and tree algorithms on it are rustworkx's, through `Topology.graph()`.
"""
