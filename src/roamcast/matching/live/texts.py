"""`Texts`: the texts of all live contexts, by number, with labels in their order and their bytes.

Equal texts share a number, counted by use and reused when nobody has the text any more. Labels are
int64 in the order of code points, so compiled code compares texts as numbers. The sorted texts lie
in blocks; a block owns the labels up to the next block's, and spreads its texts over them anew when
a gap is used up. Only when blocks have no room between them are all of them spread.

The bytes (UTF-8) serve LIKE. Beside them stand signatures: a text has two bits of 256 for each
group of three bytes that it contains, and a pattern's literal runs need certain bits. Signatures
lie in bit slices, a line for each bit with a place for each text, so a pattern reads a few lines
and not all texts. Where there are many texts it does not read whole lines either: texts lie in
blocks of 256 by number, and a line for each of 16,384 groups says in which blocks it occurs.
"""

from bisect import bisect_left, bisect_right

import numpy as np

from roamcast.matching.layout import Array
from roamcast.model.kernels import inlined, kernel, lowest_bit

BLOCK = 256
SPACING = 1 << 40
"""Labels of a block when all are spread evenly: room for 2²² blocks on either side of 0."""

ROOM_MIN = 4 * BLOCK
"""Labels that two blocks must have between them to be split."""

SIGNATURE_BITS = 256
WAYS = 2
"""Bits of a group: with two, one of 10,000 short texts has those of four letters by chance."""

NEEDED_MAX = 16
"""Lines that a pattern reads: more rule out hardly any text."""

GROUP_BITS = 14
"""Groups of three bytes are told apart by so many bits in lines of blocks."""

BLOCK_BITS = 8
"""2⁸ short texts of letters have a tenth of all groups: two groups leave one block of a hundred."""

BLOCKS_FROM = 1 << 16
"""Texts from which on there are lines of blocks; of fewer, all signatures are soon read."""

ANY_ONE, ANY_RUN = 256, 257
"""Codes of a pattern beside its bytes: `_` and `%`."""

FREED_MIN = 1 << 16
"""Bytes of texts that are gone before the others are moved together."""


@inlined
def _bit(first: int, second: int, third: int, way: int) -> int:
    mixed = (first * 0x1F35 + second * 0x0B53 + third * 0x6B9) & 0xFFFFFFFF
    if way:
        mixed = (mixed * 0x9E3779B1) & 0xFFFFFFFF
        return (mixed >> 24) % SIGNATURE_BITS
    return (mixed ^ (mixed >> 7)) % SIGNATURE_BITS


@inlined
def _group(first: int, second: int, third: int) -> int:
    mixed = ((first << 16 | second << 8 | third) * 0x9E3779B1) & 0xFFFFFFFF
    return mixed >> (32 - GROUP_BITS)


@kernel
def sign(data: Array, start: int, stop: int, lines: Array, number: int, present: bool) -> None:
    """Set or clear the bits of a text's groups of three bytes."""
    word, mask = number >> 6, np.uint64(1) << np.uint64(number & 63)
    for at in range(start, stop - 2):
        for way in range(WAYS):
            bit = _bit(data[at], data[at + 1], data[at + 2], way)
            if present:
                lines[bit, word] |= mask
            else:
                lines[bit, word] &= ~mask


@kernel
def mark(data: Array, spans: Array, first: int, last: int, blocks: Array) -> None:
    """Set the bits of the groups of some texts in the lines of their blocks."""
    for number in range(first, min(last, len(spans))):
        block = number >> BLOCK_BITS
        word, mask = block >> 6, np.uint64(1) << np.uint64(block & 63)
        for at in range(spans[number, 0], spans[number, 1] - 2):
            blocks[_group(data[at], data[at + 1], data[at + 2]), word] |= mask


@kernel
def mark_anew(data: Array, spans: Array, block: int, blocks: Array) -> None:
    """Clear the bits of a block, and set those of the texts that it has now."""
    word, mask = block >> 6, np.uint64(1) << np.uint64(block & 63)
    for group in range(len(blocks)):
        blocks[group, word] &= ~mask
    mark(data, spans, block << BLOCK_BITS, (block + 1) << BLOCK_BITS, blocks)


@kernel
def groups_of(pattern: Array) -> Array:
    """Return the groups of three bytes that every text has which satisfies a pattern."""
    groups = np.empty(NEEDED_MAX, np.int64)
    count = 0
    for at in range(len(pattern) - 2):
        first, second, third = pattern[at], pattern[at + 1], pattern[at + 2]
        if max(first, second, third) < 256 and count < NEEDED_MAX:
            groups[count] = _group(first, second, third)
            count += 1
    return groups[:count]


@kernel
def needed(pattern: Array) -> Array:
    """Return the bits that every text has which satisfies a pattern, each once."""
    bits = np.empty(NEEDED_MAX, np.int64)
    count = 0
    for at in range(len(pattern) - 2):
        if pattern[at] < 256 and pattern[at + 1] < 256 and pattern[at + 2] < 256:
            for way in range(WAYS):
                bit = _bit(pattern[at], pattern[at + 1], pattern[at + 2], way)
                fresh = True
                for known in range(count):
                    fresh = fresh and bits[known] != bit
                if fresh and count < NEEDED_MAX:
                    bits[count] = bit
                    count += 1
    return bits[:count]


@inlined
def _next(data: Array, at: int, stop: int) -> int:
    """Return where the character after the one at `at` begins."""
    at += 1
    while at < stop and (data[at] & 0xC0) == 0x80:
        at += 1
    return at


@inlined
def _like(data: Array, start: int, stop: int, pattern: Array) -> bool:
    """Match from left to right; after a % the leftmost fit is as good as any (no recursion)."""
    at, place = start, 0
    retry, resume = -1, -1
    while at < stop or place < len(pattern):
        code = pattern[place] if place < len(pattern) else -1
        if code == ANY_RUN:
            retry, resume = at, place + 1
            place += 1
        elif at < stop and code == ANY_ONE:
            at = _next(data, at, stop)
            place += 1
        elif at < stop and code == data[at]:
            at += 1
            place += 1
        elif retry >= 0 and retry < stop:
            retry = _next(data, retry, stop)
            at, place = retry, resume
        else:
            return False
    return True


@kernel
def like_each(data: Array, spans: Array, numbers: Array, pattern: Array, out: Array) -> None:
    """Say of each text number whether its text satisfies the pattern; False for a negative one."""
    for index in range(len(numbers)):
        number = numbers[index]
        out[index] = number >= 0 and _like(data, spans[number, 0], spans[number, 1], pattern)


@kernel
def like_in(
    data: Array,
    spans: Array,
    lines: Array,
    words: tuple[int, int],
    pattern: Array,
    need: Array,
    found: Array,
    total: int,
) -> int:
    """Copy the numbers of texts that satisfy a pattern; return how many there are by now.

    `need` has at least one bit; of each line the words from the first to before the last are read.
    The search ends when `found` is full.
    """
    for word in range(words[0], words[1]):
        bits = lines[need[0], word]
        for at in range(1, len(need)):
            bits &= lines[need[at], word]
            if not bits:
                break
        while bits:
            number = (word << 6) + lowest_bit(bits)
            bits &= bits - np.uint64(1)
            if _like(data, spans[number, 0], spans[number, 1], pattern):
                if total == len(found):
                    return total
                found[total] = number
                total += 1
    return total


@kernel
def like_blocks(
    data: Array,
    spans: Array,
    lines: Array,
    blocks: Array,
    words: int,
    pattern: Array,
    need: Array,
    groups: Array,
    found: Array,
) -> int:
    """Do as `like_in` with all words, in the blocks only that have all groups of a pattern."""
    total, width = 0, (1 << BLOCK_BITS) >> 6
    for at in range((words // width >> 6) + 1):
        bits = blocks[groups[0], at]
        for other in range(1, len(groups)):
            bits &= blocks[groups[other], at]
        while bits:
            first = ((at << 6) + lowest_bit(bits)) * width
            bits &= bits - np.uint64(1)
            part = (first, min(first + width, words))
            total = like_in(data, spans, lines, part, pattern, need, found, total)
            if total == len(found):
                return total
    return total


@kernel
def compact(data: Array, spans: Array, fresh: Array) -> int:
    """Copy the bytes of all texts together; return how many there are."""
    used = 0
    for number in range(len(spans)):
        if spans[number, 0] >= 0:
            start, stop = spans[number]
            for at in range(start, stop):
                fresh[used + at - start] = data[at]
            spans[number, 0] = used
            used += stop - start
            spans[number, 1] = used
    return used


def pattern_codes(pattern: str) -> Array:
    """Return a LIKE pattern as codes: bytes, ANY_ONE and ANY_RUN."""
    codes: list[int] = []
    escaped = False
    for character in pattern:
        if escaped or character not in "%_\\":
            codes += character.encode()
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "_":
            codes.append(ANY_ONE)
        elif not codes or codes[-1] != ANY_RUN:
            codes.append(ANY_RUN)
    if escaped:  # a lone backslash at the end stands for itself
        codes.append(ord("\\"))
    return np.array(codes, np.int64)


class Texts:
    """Texts by number, counted by use."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.labels: Array = np.zeros(64, np.int64)
        self.spans: Array = np.full((64, 2), -1, np.int64)
        self.lines: Array = np.zeros((SIGNATURE_BITS, 1), np.uint64)
        self.blocks: Array | None = None
        """For each group of three bytes the blocks with it: at least those, None if few texts."""
        self.data: Array = np.empty(1024, np.uint8)
        self.count = 0
        """Numbers ever given, free ones included."""
        self._uses: list[int] = []
        self._free: list[int] = []
        self._used_bytes = 0
        self._freed_bytes = 0
        self._blocks: list[list[str]] = [[]]
        self._firsts: list[str] = [""]
        self._bases: list[int] = [0]
        self._dropped: dict[int, int] = {}
        """Blocks of numbers → texts that are gone and may have left bits behind."""

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, text: str) -> int:
        """Use a text once more; return its number."""
        number = self.numbers.get(text)
        if number is not None:
            self._uses[number] += 1
            return number
        if self._free:
            number = self._free.pop()
        else:
            number = self.count
            self.count += 1
            self._uses.append(0)
            if number == len(self.labels):
                self._grow()
        self._uses[number] = 1
        self.numbers[text] = number
        self._store(number, text.encode())
        self._insert(number, text)
        return number

    def drop(self, text: str) -> None:
        """Use a text once less; forget it with its last use."""
        number = self.numbers[text]
        self._uses[number] -= 1
        if self._uses[number]:
            return
        del self.numbers[text]
        start, stop = self.spans[number].tolist()
        self._freed_bytes += stop - start
        sign(self.data, start, stop, self.lines, number, False)
        self.spans[number] = -1
        self._free.append(number)
        if self.blocks is not None:
            self._drop_from_block(number >> BLOCK_BITS)
        place = max(bisect_right(self._firsts, text) - 1, 0)
        block = self._blocks[place]
        del block[bisect_left(block, text)]
        if not block and len(self._blocks) > 1:
            del self._blocks[place], self._firsts[place], self._bases[place]
            self._firsts[0] = ""
        if self._freed_bytes > max(FREED_MIN, self._used_bytes // 2):
            self._compact()
        if not self.numbers:
            self.__init__()  # type: ignore[misc]

    def liking(self, pattern: str, found: Array) -> int | None:
        """Copy the numbers of texts that satisfy a LIKE pattern, as many as there is room for.

        Return how many; None if the pattern's literal runs are too short to rule texts out.
        """
        codes = pattern_codes(pattern)
        need = needed(codes)
        if not len(need):
            return None
        words = (self.count + 63) >> 6
        if self.blocks is None:
            return int(
                like_in(self.data, self.spans, self.lines, (0, words), codes, need, found, 0)
            )
        return int(
            like_blocks(
                self.data, self.spans, self.lines, self.blocks, words, codes, need,
                groups_of(codes), found,
            )
        )  # fmt: skip

    def _drop_from_block(self, block: int) -> None:
        """Mark a block anew when as many texts are gone as it may hold."""
        assert self.blocks is not None
        dropped = self._dropped[block] = self._dropped.get(block, 0) + 1
        if dropped >= 1 << BLOCK_BITS:
            del self._dropped[block]
            mark_anew(self.data, self.spans, block, self.blocks)

    def from_on(self, text: str, *, after: bool) -> int:
        """Return the label of the first text from this one on, or after it."""
        place = max(bisect_right(self._firsts, text) - 1, 0)
        block = self._blocks[place]
        at = bisect_right(block, text) if after else bisect_left(block, text)
        if at < len(block):
            return int(self.labels[self.numbers[block[at]]])
        if place + 1 < len(self._blocks):
            return int(self.labels[self.numbers[self._blocks[place + 1][0]]])
        return 2**63 - 1

    def _grow(self) -> None:
        self.labels = np.concatenate([self.labels, np.zeros_like(self.labels)])
        self.spans = np.concatenate([self.spans, np.full_like(self.spans, -1)])
        self.lines = np.concatenate([self.lines, np.zeros_like(self.lines)], axis=1)
        if self.blocks is not None:
            self.blocks = np.concatenate([self.blocks, np.zeros_like(self.blocks)], axis=1)
        elif len(self.labels) >= BLOCKS_FROM:
            words = max(1, len(self.labels) >> (BLOCK_BITS + 6))
            self.blocks = np.zeros((1 << GROUP_BITS, words), np.uint64)
            mark(self.data, self.spans, 0, self.count, self.blocks)

    def _store(self, number: int, encoded: bytes) -> None:
        start = self._used_bytes
        stop = self._used_bytes = start + len(encoded)
        if stop > len(self.data):
            data = np.empty(2 * stop, np.uint8)
            data[:start] = self.data[:start]
            self.data = data
        self.data[start:stop] = np.frombuffer(encoded, np.uint8)
        self.spans[number] = (start, stop)
        sign(self.data, start, stop, self.lines, number, True)
        if self.blocks is not None:
            mark(self.data, self.spans, number, number + 1, self.blocks)

    def _compact(self) -> None:
        fresh = np.empty(max(1024, 2 * (self._used_bytes - self._freed_bytes)), np.uint8)
        self._used_bytes = compact(self.data, self.spans, fresh)
        self.data = fresh
        self._freed_bytes = 0

    def _insert(self, number: int, text: str) -> None:
        place = max(bisect_right(self._firsts, text) - 1, 0)
        block = self._blocks[place]
        at = bisect_left(block, text)
        block.insert(at, text)
        if len(block) > BLOCK:
            self._split(place)
            return
        low = self.labels[self.numbers[block[at - 1]]] if at else self._bases[place]
        last = at + 1 == len(block)
        high = self._end(place) if last else self.labels[self.numbers[block[at + 1]]]
        # Ascending texts step on by a little: halving would use the room up at once.
        step = (high - low) // (16 if last else 2)
        if step >= 1 and (at or high - low > 1):
            self.labels[number] = low + step
        else:
            self._spread(place)

    def _end(self, place: int) -> int:
        """Return where the labels of a block end."""
        following = place + 1 < len(self._bases)
        return self._bases[place + 1] if following else self._bases[place] + SPACING

    def _split(self, place: int) -> None:
        base, end = self._bases[place], self._end(place)
        block = self._blocks[place]
        middle = len(block) // 2
        self._blocks[place : place + 1] = [block[:middle], block[middle:]]
        self._firsts.insert(place + 1, block[middle])
        if end - base >= ROOM_MIN:
            last = place + 1 == len(self._bases)
            self._bases.insert(place + 1, end if last else (base + end) // 2)
            self._spread(place)
            self._spread(place + 1)
            return
        self._bases.insert(place + 1, base)
        self._make_room(place)

    def _make_room(self, place: int) -> None:
        """Spread the bases of blocks around one, of as few as have room enough together."""
        low, high, total = place, place + 2, len(self._blocks)
        while high - low < total:
            room = (self._end(high - 1) - self._bases[low]) // (high - low)
            if room >= ROOM_MIN << 8:
                break
            width = high - low
            low, high = max(0, low - width), min(total, high + width)
        start = self._bases[low]
        room = (self._end(high - 1) - start) // (high - low)
        if high - low == total:
            start, room = 0, SPACING
        for number in range(low, high):
            self._bases[number] = start + room * (number - low)
        for number in range(low, high):
            self._spread(number)

    def _spread(self, place: int) -> None:
        block, base, end = self._blocks[place], self._bases[place], self._end(place)
        numbers = np.array([self.numbers[text] for text in block], np.int64)
        step = (end - base) // (len(block) + 1)
        self.labels[numbers] = base + step * np.arange(1, len(block) + 1, dtype=np.int64)

    @classmethod
    def warm_up(cls) -> None:
        """Load the compiled code of tables as large as only many texts make them."""
        texts = cls()
        texts.take("word")
        while texts.blocks is None:
            texts._grow()
        texts.take("other")
        texts.liking("%ord%", np.empty(1, np.int64))
        mark_anew(texts.data, texts.spans, 0, texts.blocks)
        texts._compact()
