"""Home brokers: which broker serves whom, when that changes, and why (OO 2.4, 3).

In: what clients find near them, what brokers measure of their load. Out: moves of clients from one
home to another. docs/homes.md is the whole story.
"""
