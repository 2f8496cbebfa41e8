"""One server at a time on several hosts: watchdogs, epochs, take-over, merged maps (AMS 14 and 15).

In: signs of life of the hosts that may serve. Out: starts, stops, and maps handed over.
"""
