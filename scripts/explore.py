"""Draw new examples for as long as is given: `make explore MINUTES=5`.

Each worker takes a random file with hypothesis tests, a random hypothesis seed and a random hash
seed, and runs it; now and then a range of swarm seeds instead. The first failure ends the run with
the command that brings it again. What it finds becomes a test: an `@example`, a case of its own.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SELECT = "hypothesis and not spark and not soak"
SWARM_SEEDS = 50
SWARM_SHARE = 0.1
"""This part of all turns goes to the swarm."""

draw = random.SystemRandom()


class Turn(NamedTuple):
    """One command, the hash seed it ran under, and what came of it."""

    words: list[str]
    hash_seed: int
    code: int
    output: str

    @property
    def failed(self) -> bool:
        """Whether a promise was broken; 5 is pytest's word for "no tests"."""
        return self.code not in (0, 5)


def main() -> int:
    """Run turns until the time is over or one fails."""
    parser = argparse.ArgumentParser(description=__doc__, usage="%(prog)s [options] [TEST …]")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("tests", nargs="*", default=["tests"], help="files or folders")
    given = parser.parse_args()
    files = find_files(given.tests)
    if not files:
        say(f"no hypothesis tests in {' '.join(given.tests)}")
        return 2
    end = time.monotonic() + given.minutes * 60
    done = 0
    failed: list[Turn] = []
    with ThreadPoolExecutor(given.workers) as pool:
        running: set[Future[Turn]] = {pool.submit(turn, files) for _ in range(given.workers)}
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for one in finished:
                done += 1
                if one.result().failed:
                    failed.append(one.result())
                elif time.monotonic() < end and not failed:
                    running.add(pool.submit(turn, files))
    for found in failed:
        show(found)
    say(f"{done} runs, {len(failed)} failed")
    return 1 if failed else 0


def find_files(tests: list[str]) -> list[str]:
    """List the files that have hypothesis tests."""
    words = pytest_words(*tests, "--collect-only", "-q", "-m", SELECT)
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    return sorted({line.partition("::")[0] for line in found.stdout.splitlines() if "::" in line})


def turn(files: list[str]) -> Turn:
    """Draw one command and run it."""
    if draw.random() < SWARM_SHARE:
        first = str(draw.randrange(2**31))
        words = [sys.executable, "-m", "roamcast", "swarm", "--seeds", str(SWARM_SEEDS)]
        words += ["--first", first, "--workers", "1"]
    else:
        seed = f"--hypothesis-seed={draw.randrange(2**32)}"
        profile = "--hypothesis-profile=explore"
        words = pytest_words(draw.choice(files), "-q", "-x", "-m", SELECT, profile, seed)
    hash_seed = draw.randrange(2**32)
    done = subprocess.run(  # noqa: S603 - ours
        words,
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    say(f"{'ok    ' if not done.returncode else 'FAILED'} {' '.join(words[3:])}")
    return Turn(words, hash_seed, done.returncode, done.stdout)


def pytest_words(*words: str) -> list[str]:
    """Write a command that runs pytest in one process."""
    return [sys.executable, "-m", "pytest", *words, "-p", "no:cacheprovider", "-n", "0"]


def show(found: Turn) -> None:
    """Print what failed and what brings it again."""
    say(found.output)
    command = " ".join(f"'{word}'" if " " in word else word for word in found.words)
    say("to see it again, with the same seeds:")
    say(f"  PYTHONHASHSEED={found.hash_seed} {command}")
    if "@reproduce_failure" in found.output:
        say("or put the @reproduce_failure line above on the test.")
    say("")


def say(text: str) -> None:
    """Print at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
