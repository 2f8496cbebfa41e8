"""Modulators in the live service: the clock that stops what fuel would allow.

In: an engine. Out: epochs that end at an even pace, so that no call lasts long.
"""
