"""What the service and the SDK share: drivers, reconnecting links, groups by UDP and NATS, seals."""
