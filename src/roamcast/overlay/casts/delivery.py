"""What becomes of those whom a cast has found: pages, on disk until a trusted node has them.

Pairs of (vid, sealing key) are written in pages. With NH each page is for one trusted node at once.
Otherwise pages wait to be united with those of neighbours, and then go back towards the node that
resolves them, hop by hop, or to trusted nodes where this node is the one (TCC III-C, algorithms 5
and 6). What is on disk here is deleted only when the next one has it.
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count

import msgspec

from roamcast.errors import InputError
from roamcast.identity.pseudonyms import trusted_node_of
from roamcast.model.machine import Draw, Effect, Writes
from roamcast.model.parts import Occupancy, Timers
from roamcast.model.records import CastStep
from roamcast.overlay.casts.held import (
    PAYLOADS,
    CastPage,
    HeldCast,
    StoredPage,
    name_of,
    paged_pairs,
    plan_of,
)
from roamcast.overlay.casts.messages import (
    RESULT,
    CastResult,
    DepositMail,
    MailDeposited,
    Pair,
)
from roamcast.overlay.casts.requests import Requests
from roamcast.overlay.casts.settings import CastSettings

KeyOf = Callable[[str], bytes | None]
"""A vid's sealing key, if it has one."""

What = tuple[str, str, int]
"""A timer: what to do, for which cast, for which of its pages."""


class CastDelivery:
    """The pages of all casts at a node."""

    def __init__(
        self,
        node: str,
        settings: CastSettings,
        requests: Requests,
        timers: Timers[What],
        *,
        draw: Draw,
        key_of: KeyOf,
        trusted_nodes: frozenset[str],
    ) -> None:
        self.node = node
        self.pairs = 0
        """Pairs in memory."""
        self._settings = settings
        self._requests = requests
        self._timers = timers
        self._draw = draw
        self._key_of = key_of
        self._trusted_nodes = trusted_nodes
        self._deposits: dict[int, tuple[HeldCast, CastPage]] = {}
        self._ready: list[tuple[int, int, HeldCast, CastPage]] = []
        self._order = count().__next__

    def occupancy(self) -> Occupancy:
        """How much is held."""
        return {
            "deposits": (len(self._deposits), self._settings.deposits_max),
            # Those of one look-up and of one parcel may come on top.
            "pairs": (self.pairs, 2 * self._settings.pairs_max),
        }

    @property
    def full(self) -> bool:
        """Whether nothing more should be found for now."""
        return self.pairs >= self._settings.pairs_max

    # --- found

    def found(
        self, held: HeldCast, vids: Sequence[str], archived: Mapping[str, bytes] | None = None
    ) -> list[Effect]:
        """Take whom this node has found; those whom nobody can reach only count.

        `archived`: keys of vids that never registered anywhere.
        """
        pairs: list[Pair] = []
        fresh = [vid for vid in dict.fromkeys(vids) if vid not in held.whom]
        for vid in fresh:
            held.whom[vid] = None
            key = self._key_of(vid) if _trusted(vid) in self._trusted_nodes else None
            if key is None and archived and _trusted(vid) in self._trusted_nodes:
                key = archived.get(vid)
            if key is None:
                held.unreachable += 1
            else:
                pairs.append(Pair(vid, key))
        if not fresh:
            return []
        held.found += len(fresh)
        step = CastStep(held.id, "found", number=len(fresh))
        return [step, *self._write(held, self._paged(held, pairs))]

    def came(self, held: HeldCast, pairs: Sequence[Pair]) -> list[CastPage]:
        """Give the pages to write for results of a neighbour, without those known already."""
        fresh = [pair for pair in pairs if pair.vid not in held.whom]
        return self._paged(held, fresh)

    def came_stored(self, held: HeldCast, pages: Sequence[CastPage], now: int) -> list[Effect]:
        """Take a neighbour's results: they are on disk."""
        for page in pages:
            for pair in page.page.pairs:
                held.whom[pair.vid] = None
            self._hold(held, page)
            page.stored = True
        return self._go_on(held, pages, now)

    def _paged(self, held: HeldCast, pairs: Sequence[Pair]) -> list[CastPage]:
        """Divide pairs into pages: by trusted node, unless they wait to be united."""
        if self._unites(held):
            return self._pages(held, "", pairs)
        return self._by_node(held, pairs)

    def _by_node(self, held: HeldCast, pairs: Sequence[Pair]) -> list[CastPage]:
        by_node: dict[str, list[Pair]] = {}
        for pair in pairs:
            by_node.setdefault(_trusted(pair.vid), []).append(pair)
        return [
            page
            for node in sorted(by_node)
            for page in self._pages(held, "@" + node, by_node[node])
        ]

    def _pages(self, held: HeldCast, to: str, pairs: Sequence[Pair]) -> list[CastPage]:
        settings = self._settings
        pages = []
        for some in paged_pairs(pairs, settings.page_pairs, settings.page_bytes):
            held.known += 1
            pages.append(
                CastPage(StoredPage(held.id, held.known, to, some, (held.id,)), stored=False)
            )
        return pages

    def _unites(self, held: HeldCast) -> bool:
        """Whether what is found waits for others: not where it is resolved, once that has begun."""
        return held.resolver(self.node) != self.node or (
            held.body.policy != "NH" and not held.flushed
        )

    def _hold(self, held: HeldCast, page: CastPage) -> None:
        held.pages[page.page.number] = page
        self.pairs += len(page.page.pairs)

    def _drop(self, held: HeldCast, page: CastPage) -> None:
        if held.pages.pop(page.page.number, None) is not None:
            self.pairs -= len(page.page.pairs)

    def _write(
        self, held: HeldCast, pages: Sequence[CastPage], gone: Sequence[CastPage] = ()
    ) -> list[Effect]:
        """Write new pages and delete those that they are made of, all or none."""
        for page in pages:
            self._hold(held, page)
            page.busy = True
        if not pages and not gone:
            return []

        def then(done: bool, now: int) -> Sequence[Effect]:
            for page in pages:
                page.busy, page.stored = False, done
            for page in gone:
                page.busy = False
            if not done:
                self._timers.set(("write", held.id, 0), now + self._settings.retry_us)
                if gone:  # they are divided again
                    for page in pages:
                        self._drop(held, page)
                return []
            for page in gone:
                self._drop(held, page)
            return self._go_on(held, pages, now)

        writes: Writes = (*(page.write() for page in pages), *((one.key, None) for one in gone))
        return [self._requests.store(writes, then)]

    def again(self, held: HeldCast, now: int) -> list[Effect]:
        """Write again what the disk refused, and go on."""
        effects: list[Effect] = []
        for page in list(held.pages.values()):
            if not page.stored and not page.busy:
                self._drop(held, page)
                effects += self._write(held, [page])
        return [*effects, *self._go_on(held, list(held.pages.values()), now)]

    # --- onwards

    def _go_on(self, held: HeldCast, pages: Sequence[CastPage], now: int) -> list[Effect]:
        effects: list[Effect] = []
        for page in pages:
            if page.page.to and page.page.owes and not page.busy:
                self.owe(held, page)
        waiting = [one for one in held.pages.values() if not one.page.to]
        united = sum(len(one.page.pairs) for one in waiting)
        if waiting and (held.flushed or united > self._settings.union_max):
            effects += self.flush(held, complete=False, now=now)
        return [*effects, *self.pump(now)]

    def flush(self, held: HeldCast, *, complete: bool, now: int) -> list[Effect]:
        """Pass united results on, towards where they are resolved; what comes later follows."""
        held.flushed = True
        pages = [
            one for one in held.pages.values() if not one.page.to and one.stored and not one.busy
        ]
        if held.resolver(self.node) == self.node:
            if not pages:
                return []
            pairs = {pair.vid: pair for one in pages for pair in one.page.pairs}
            for one in pages:
                one.busy = True
            return self._write(held, self._by_node(held, list(pairs.values())), pages)
        effects: list[Effect] = []
        groups = self._grouped(pages)
        for number, group in enumerate(groups):
            last = number == len(groups) - 1
            effects.append(self._pass_on(held, group, complete=complete and last))
        if not groups and complete:
            effects.append(self._pass_on(held, [], complete=True))
        del now
        return effects

    def _grouped(self, pages: Sequence[CastPage]) -> list[list[CastPage]]:
        """Put small pages together, as many as fit one."""
        groups: list[list[CastPage]] = []
        pairs: list[Pair] = []
        for page in pages:
            settings = self._settings
            joined = [*pairs, *page.page.pairs]
            if groups and len(paged_pairs(joined, settings.page_pairs, settings.page_bytes)) == 1:
                groups[-1].append(page)
                pairs = joined
            else:
                groups.append([page])
                pairs = list(page.page.pairs)
        return groups

    def _pass_on(self, held: HeldCast, pages: Sequence[CastPage], *, complete: bool) -> Effect:
        for page in pages:
            page.busy = True

        def then(done: bool, now: int) -> Sequence[Effect]:
            for page in pages:
                page.busy = False
                if done:
                    self._drop(held, page)
            if not done:
                self._timers.set(("write", held.id, 0), now + self._settings.retry_us)
            return [CastStep(held.id, "passed back", held.came_from, number)] if done else []

        pairs = {pair.vid: pair for page in pages for pair in page.page.pairs}
        number = len(pairs)
        result = CastResult(held.id, self.node, tuple(pairs.values()), complete)
        gone = tuple((page.key, None) for page in pages)
        return self._requests.post(
            RESULT, (held.came_from,), msgspec.msgpack.encode(result), gone, then
        )

    # --- trusted nodes

    def owe(self, held: HeldCast, page: CastPage) -> None:
        """Deposit a page as soon as it is its turn: more important ones first."""
        heappush(self._ready, (-held.body.priority, self._order(), held, page))

    def pump(self, now: int) -> list[Effect]:
        """Begin as many deposits as may be under way."""
        effects: list[Effect] = []
        while self._ready and len(self._deposits) < self._settings.deposits_max:
            _, _, held, page = heappop(self._ready)
            if page.busy or not page.page.owes or held.pages.get(page.page.number) is not page:
                continue
            page.busy = True
            effects.append(self._deposit(held, page))
        del now
        return effects

    def _deposit(self, held: HeldCast, page: CastPage) -> Effect:
        body, cast = held.body, page.page.owes[0]
        kind, media_type = body.kind, body.media_type
        if cast != held.id:
            assert held.end is not None, "only an update has another id"
            kind, media_type = held.end.kind, held.end.media_type
        token = self._requests.token()
        self._deposits[token] = held, page
        return DepositMail(
            token,
            page.page.to[1:],
            cast,
            body.sender,
            kind,
            body.priority,
            body.over_us,
            plan_of(body).back_s,
            PAYLOADS + name_of(cast),
            media_type,
            tuple((pair.vid, pair.key) for pair in page.page.pairs),
        )

    def deposited(self, given: MailDeposited, now: int) -> list[Effect]:
        """Take a trusted node's answer: note it on disk, or try again where somebody was full."""
        held, page = self._deposits.pop(given.token)
        page.busy = False
        if held.pages.get(page.page.number) is not page:
            return self.pump(now)  # the cast is over
        if given.full:
            self._later(held, page, now)
            return self.pump(now)
        stored = page.page
        if stored.owes[0] == held.id:
            held.updatable += len(stored.pairs)
            page.beyond = held.updatable > self._settings.update_max
            stored.reached, stored.refused = given.reached, given.refused
            stored.unreachable = given.unreachable
        step = CastStep(held.id, "deposited", stored.to[1:], len(stored.pairs))
        stored.last = stored.owes[0]
        stored.owes = stored.owes[1:]
        page.refusals = 0
        if stored.owes:
            self.owe(held, page)
        elif page.beyond:
            held.updatable -= len(stored.pairs)
            held.unnamed += stored.reached
            self._drop(held, page)
            return [step, self._requests.store(((page.key, None),), _nothing), *self.pump(now)]
        return [step, *self.note(held, page), *self.pump(now)]

    def deposit_failed(self, token: int, reason: str, now: int) -> list[Effect]:
        """Try again later: nothing is known of it."""
        held, page = self._deposits.pop(token)
        page.busy = False
        if held.pages.get(page.page.number) is page:
            self._later(held, page, now)
        return [
            CastStep(held.id, f"not deposited: {reason}"[:200], page.page.to[1:]),
            *self.pump(now),
        ]

    def note(self, held: HeldCast, page: CastPage) -> list[Effect]:
        """Write what has become of a page; its pairs stay on disk for an update, not in memory."""

        def then(done: bool, now: int) -> Sequence[Effect]:
            if not done and held.pages.get(page.page.number) is page:
                self._timers.set(("note", held.id, page.page.number), now + self._settings.retry_us)
            elif done and not page.page.owes and held.pages.get(page.page.number) is page:
                self.pairs -= len(page.page.pairs)
                page.page.pairs = ()
            return []

        return [self._requests.store((page.write(),), then)]

    def _later(self, held: HeldCast, page: CastPage, now: int) -> None:
        settings = self._settings
        delay = min(settings.retry_us << min(page.refusals, 20), settings.retry_us_max)
        page.refusals += 1
        at = now + delay // 2 + round(delay * self._draw() / 2) + 1
        self._timers.set(("deposit", held.id, page.page.number), at)

    def due(self, held: HeldCast, what: str, number: int, now: int) -> list[Effect]:
        """Do again what failed before."""
        page = held.pages.get(number)
        if what == "write":
            return self.again(held, now)
        if page is None:
            return []
        if what == "note":
            return self.note(held, page)
        self.owe(held, page)
        return self.pump(now)

    # --- the end of a cast

    def take_up(self, held: HeldCast, stored: StoredPage) -> None:
        """Take up a page from the disk."""
        page = CastPage(stored, stored=True)
        held.known = max(held.known, stored.number)
        for pair in stored.pairs:
            held.whom[pair.vid] = None
        held.found += len(stored.pairs)
        if held.id not in stored.owes:
            held.updatable += len(stored.pairs)
        if not stored.owes:
            stored.pairs = ()
        self._hold(held, page)
        if stored.to and stored.owes:
            self.owe(held, page)

    def cancel(self, held: HeldCast, *, keep_owed: bool) -> Writes:
        """Drop what has not begun to be delivered; give what is to be deleted.

        With `keep_owed`, for an update, only those who are not yet on a page for a trusted node.
        """
        gone = [
            page
            for page in held.pages.values()
            if page.page.owes and not (keep_owed and page.page.to)
        ]
        for page in gone:
            self._drop(held, page)
        return tuple((page.key, None) for page in gone)

    def update(self, held: HeldCast, update: str) -> list[Effect]:
        """Owe an update to everybody whom the cast has reached, or is about to."""
        effects: list[Effect] = []
        for page in list(held.pages.values()):
            if page.page.owes:
                if update not in page.page.owes:
                    page.page.owes = (*page.page.owes, update)
                    effects += self.note(held, page)
            elif page.page.last != update:
                effects.append(self._read_again(held, page, update))
        return effects

    def _read_again(self, held: HeldCast, page: CastPage, update: str) -> Effect:
        """Read a delivered page from the disk: an update is for the same people."""
        page.busy = True

        def then(value: bytes | None, now: int) -> Sequence[Effect]:
            page.busy = False
            if value is None or held.pages.get(page.page.number) is not page:
                return []
            stored = msgspec.msgpack.decode(value, type=StoredPage)
            self.pairs += len(stored.pairs) - len(page.page.pairs)
            stored.owes = (update,)
            page.page = stored
            self.owe(held, page)
            return [*self.note(held, page), *self.pump(now)]

        return self._requests.read(page.key, then)

    def forget(self, held: HeldCast) -> None:
        """Hold nothing of a cast any more."""
        for page in list(held.pages.values()):
            self._drop(held, page)

    def is_stored(self, held: HeldCast) -> bool:
        """Whether everybody found is on disk."""
        return all(page.stored for page in held.pages.values())

    def is_done(self, held: HeldCast) -> bool:
        """Whether nothing of it is owed to anybody."""
        return not any(
            page.busy or not page.stored or page.page.owes for page in held.pages.values()
        )


def _nothing(done: bool, now: int) -> Sequence[Effect]:
    """Let nothing follow: a page that stays on disk is deleted with its cast."""
    del done, now
    return ()


def _trusted(vid: str) -> str:
    try:
        return trusted_node_of(vid)
    except InputError:
        return ""
