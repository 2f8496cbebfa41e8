"""What nodes say of tables over links of the shared tree."""

from typing import Annotated, Final

from msgspec import Meta

from roamcast.model.wire import Count, Message, messages_of
from roamcast.overlay.links.chunks import CHUNK_BYTES

TableName = Annotated[str, Meta(min_length=1, max_length=40)]


class TablesWanted(Message, frozen=True, tag="tables.wanted", gc=False):
    """Node to neighbour when the tree begins to run over their link: offer everything anew."""


class TableChunk(Message, frozen=True, tag="tables.offer", gc=False):
    """Node to neighbour: the next bytes of a page of an offer."""

    table: TableName
    number: Annotated[Count, Meta(description="of the chunk within its page, from 0")]
    chunk: Annotated[bytes, Meta(max_length=CHUNK_BYTES)]
    last: bool


class TableReceipt(Message, frozen=True, tag="tables.receipt", gc=False):
    """Node to neighbour: this version of an offer is applied."""

    table: TableName
    version: Count


TABLES_MESSAGES: Final = messages_of(__name__)
