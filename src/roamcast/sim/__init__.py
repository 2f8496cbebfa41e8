"""Brokers in virtual time: network, faults, mobility, workloads, checkers.

In go machines, as the live service runs them, and a seed; out come a journal, metrics and broken
promises. `kernel` orders events, `host`, `network`, `storage` and `radio` make the world, `faults`
spoil it, `workload` and `checkers` say what is tried and what must hold, `scenario` and `swarm` do
it a thousand times. docs/simulator.md shows how to add a workload.
"""
