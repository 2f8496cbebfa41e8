"""Modulators: a consumer's own thinning or code, run at a broker (OO 2.1, 3.1).

In: events and their times. Out: what the consumer wants of each, or nothing. docs/modulators.md has
the binary interface of WebAssembly modules and their limits.
"""
