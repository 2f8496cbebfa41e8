"""Topologies: trees, trade-off graphs, cell grids and radio graphs.

In: sizes, parameters and a seeded numpy generator. Out: a `Topology` (or a `CellGrid`), the same
for the same seed. Path and tree algorithms are rustworkx's, through `Topology.graph()`.
"""
