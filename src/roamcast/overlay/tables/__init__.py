"""Tables: what lies beyond each link? Areas, Crowd and Wants behind one protocol.

In: local changes, offers of neighbours, time. Out: offers to neighbours, and for an area, a filter
or a context the links to send it on. docs/tables.md has the laws.
"""
