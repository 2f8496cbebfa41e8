"""The simulator: machines in virtual time, with networks and disks that fail, and people who move.

In: machines, as the live service runs them, and a seed. Out: a journal, metrics, and violated
invariants. `kernel` orders events; `host`, `network`, `storage` and `radio` are the world; `faults`
break it; `workload` and `checkers` define what is tried and what must hold; `scenario` and `swarm`
run thousands of seeds. docs/simulator.md shows how to add a workload.
"""
