"""Is compiled code still what its sources say? What is older than one of them is deleted.

Numba keeps a function's machine code until the function's own module changes. But the code of the
functions it calls is in it, too, and the constants it names: after an update of some modules of a
package, a search would run that reads pages otherwise than the insertion wrote them, and miss.
"""

import os
from hashlib import blake2b
from pathlib import Path

STAMP = "kernels.stamp"


def forget_stale(module: str) -> None:
    """Delete what Numba keeps for a module's whole folder if any of its modules is another now."""
    folder = Path(module).parent
    cache = folder / "__pycache__"
    try:
        said = _digest(folder)
        stamp = cache / STAMP
        if stamp.exists() and stamp.read_text(encoding="ascii") == said:
            return
        cache.mkdir(exist_ok=True)
        for kept in cache.glob("*.nb[ci]"):
            kept.unlink(missing_ok=True)
        written = cache / f"{STAMP}.{os.getpid()}"
        written.write_text(said, encoding="ascii")
        written.replace(stamp)
    except OSError:
        return  # where nobody may write nothing changes, and Numba keeps nothing


def _digest(folder: Path) -> str:
    digest = blake2b(digest_size=16)
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
