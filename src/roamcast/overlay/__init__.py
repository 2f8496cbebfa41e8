"""Between brokers: links, topology, tables and custody; casts, flows and handoff build on them.

In: neighbours by name and key, tables, parcels. Out: every parcel once at each node it is for, and
every table's entries wherever the overlay reaches. docs/overlay.md is the contract with a driver.
"""
