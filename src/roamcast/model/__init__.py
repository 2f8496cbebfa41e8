"""The values everything else passes around: places, contexts, filters, casts, wire messages, time.

In: GeoJSON, CQL2, Arrow, MessagePack. Out: frozen values and the contract of machines. Imports
nothing of Roamcast but `errors`.
"""
