"""Flows: every event, once, in its producer's order, for each consumer, wherever it is.

In: publications, subscriptions with a vector, what links carry. Out: events with the interval of
the origin's log that they make complete, and gaps that are told. docs/flows.md has the laws.
"""
