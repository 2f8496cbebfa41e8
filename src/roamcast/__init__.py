"""Roamcast: reach people by where they are, were or will be, not knowing who they are."""

__version__ = "0.1.0"
