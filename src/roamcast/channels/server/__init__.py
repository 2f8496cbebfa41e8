"""The active map server: contexts, subscriptions and each client's queue (AMS 1 to 5).

In: clients' numbered operations. Out: current sets, and every later update of them.
"""
