"""What is in a data file? Its contexts, or one line that says what is wrong with it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from roamcast.errors import ContextError, InputError
from roamcast.model import context_arrow
from roamcast.pipeline.archive.layout import context_name
from roamcast.pipeline.archive.storage import Storage


@contextmanager
def damage(path: str) -> Iterator[None]:
    """Tell which file is damaged, in one line."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path} in the archive is damaged: {told}") from None


def check_columns(path: str, schema: pa.Schema) -> dict[str, str]:
    """Give the stored name of every column, if the file has all it needs with the right types."""
    columns = {context_name(name): name for name in schema.names}
    fields = [pa.field(name, schema.field(stored).type) for name, stored in columns.items()]
    try:
        context_arrow.check_columns(pa.schema(fields))
    except ContextError as error:
        raise InputError(f"{path} in the archive is no file of contexts: {error}") from None
    return columns


def read_file(storage: Storage, path: str, only: Sequence[str] | None = None) -> pa.Table:
    """Read a file's contexts in the columns of `model.context_arrow`, or some of the columns."""
    with storage.open(path) as source, damage(path):
        file = pq.ParquetFile(source)
        names = check_columns(path, file.schema_arrow)
        stored = None if only is None else [names[name] for name in only]
        table = file.read(columns=stored, use_threads=False)
    table = table.rename_columns([context_name(name) for name in table.schema.names])
    return table.replace_schema_metadata(None)
