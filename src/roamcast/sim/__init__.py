"""Brokers in virtual time: network, faults, mobility, workloads, checkers."""
