"""The script with which `make setup` compiles the kernels calls what is there."""

from scripts.kernels import JOBS


def test_every_job_of_the_script_runs() -> None:
    for job in JOBS:
        job()
