"""Filter placement: where filters pay in a dissemination tree (CBM). Pure.

In: a tree (`tree.Tree`), what each leaf wants (`flows.LeafWants`) or known flows, and the costs of
links and filters (`problem.Problem`). Out: the vertices that filter and the resulting cost
(`optimal`, `heuristic`, `incremental`), and the signals that lead there from the current placement
(`batch`). These are plans; nothing here sends anything.

| module | contents |
|---|---|
| tree | a checked tree, laid out in pre-order |
| flows | the number of distinct items that each subtree wants |
| problem | the cost of a link per item, and the price of a filter |
| cost | the cost of a given placement, and the worth of each filter |
| optimal | the cheapest placement |
| heuristic | the best single move, in linear time |
| incremental | the cheapest placement after a few subscriptions changed |
| batch | the signals from one placement to the next |
| document | TREE.json |

Import the modules themselves: they compile with Numba, which is loaded on first use only.
"""
