"""Who is linked with whom, learnt by link state (OO part 2; TCC part 2).

In: links that come and go, and what neighbours know. Out: hops, one tree that all nodes share, and
a tree for each source.
"""
