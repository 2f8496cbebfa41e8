"""Did a commit land that seemed to fail? The log tells, for every commit has a name in it.

What fails may fail after the commit was written: a checkpoint on a full disk, a look at the new
snapshot, the answer of a store that was lost on the way and then looks like somebody else's
commit. Everybody reads such a commit, so its files must stay (docs/decisions/0049).
"""

from uuid import uuid4

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from roamcast.errors import RoamcastError
from roamcast.pipeline.archive.storage import one_line

KEY = "roamcast-commit"


class Commit:
    """A commit to a table that is about to be tried, from the snapshot at hand."""

    def __init__(self, uri: str, table: DeltaTable, marks: list[Transaction]) -> None:
        self._uri = uri
        self._before = int(table.version())
        self._name = uuid4().hex
        self.properties = CommitProperties({KEY: self._name}, app_transactions=marks)

    def after(self, problem: Exception) -> DeltaTable:
        """Give the table as it is now if the commit landed in spite of a problem; else raise it."""
        try:
            fresh = DeltaTable(self._uri)
            newer = int(fresh.version()) - self._before
            names = [entry.get(KEY) for entry in fresh.history(newer)] if newer > 0 else []
        except (OSError, DeltaError) as error:
            raise RoamcastError(
                f"nobody can say whether a commit landed ({one_line(problem)}): "
                f"the archive at {self._uri} cannot be read: {one_line(error)}"
            ) from None
        if self._name in names:
            return fresh
        if isinstance(problem, CommitFailedError):
            raise problem
        raise refusal(self._uri, problem) from None


def refusal(uri: str, problem: Exception) -> Exception:
    """Say in one line why a commit was refused."""
    if not isinstance(problem, OSError | DeltaError):
        return problem
    return RoamcastError(f"cannot commit to the archive at {uri}: {one_line(problem)}")
