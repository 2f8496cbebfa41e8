"""What the service and the SDK share: drivers, reconnecting links, groups, sealing."""
