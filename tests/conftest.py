"""What every test gets: hypothesis settings that suit a shared, noisy machine."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "house",
    deadline=None,  # speed is measured in bench/, never timed in a test
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),  # a landing must not fail by luck; local runs explore
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")
