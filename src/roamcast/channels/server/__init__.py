"""The active map server: contexts, subscriptions and what each client must be told (AMS 1 to 5).

In: clients' numbered operations. Out: current sets, and every later update of them.
"""
