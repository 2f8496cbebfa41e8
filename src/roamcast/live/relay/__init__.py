"""`roamcast relay`: a relay as a process of its own, in front of a service."""
