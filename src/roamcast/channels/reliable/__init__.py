"""Reliable multicast: numbered messages, gap detection, heals (AMS 6 and 12).

In: payloads for a group. Out: the same payloads at every receiver, in order, or a `Stale`.
"""
