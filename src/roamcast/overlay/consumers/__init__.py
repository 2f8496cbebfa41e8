"""Consumers: the event plane as sessions of people's programs use it.

In: what sessions publish and subscribe to. Out: frames for sessions, paced by their limits.
docs/flows.md has the laws.
"""
