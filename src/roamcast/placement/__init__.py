"""Where filters sit in a dissemination tree. Pure.

In: a tree (`tree.Tree`), who wants what (`flows.Subscriptions`) or flows already known, and what
links and filters cost (`problem.Problem`). Out: the vertices that filter and what that costs
(`optimal`, `heuristic`, `incremental`), and the signals that lead there from where filters are now
(`batch`). Nothing here sends anything: brokers do, on these plans.

| module | answers |
|---|---|
| tree | is this a tree, and in which order is it walked? |
| flows | how many items does each subtree want? |
| problem | what does a link cost per item, and what does a filter cost? |
| cost | what does a given placement cost, and what is each filter worth? |
| optimal | which placement is cheapest? |
| heuristic | which one move helps, in linear time? |
| incremental | which placement is cheapest now that a few subscriptions changed? |
| batch | which signals turn the old placement into the new one? |
| document | what does TREE.json say? |

Import the modules themselves: they compile with Numba, which is loaded on first use only.
"""
