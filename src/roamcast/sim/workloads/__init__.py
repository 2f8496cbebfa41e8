"""The protocols under test, one module each: `channel.py` is the workload `channel`.

A module has `WORKLOAD`, a class of `sim.workload.Workload`; `roamcast swarm --only channel` runs
it.
"""
