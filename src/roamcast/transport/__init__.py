"""What the service and the SDK share: the driver of a machine, the reconnecting link, groups by UDP
and NATS, sealing.
"""
