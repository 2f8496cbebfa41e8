"""Print the versions of a lock file as constraints for pip: `constraints.py requirements.lock`.

With a lock's hashes pip would install nothing that is not in it, and the wheel just built is not.
"""

import re
import sys
from pathlib import Path

PINNED = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*==[^\s;\\]+(?: ; [^\\]+)?", re.MULTILINE)


def constraints(lock: str) -> str:
    """Give a line for each package: its version, and for which machines if not for all."""
    return "".join(f"{line.strip()}\n" for line in PINNED.findall(lock))


if __name__ == "__main__":
    sys.stdout.write(constraints(Path(sys.argv[1]).read_text("utf-8")))
