"""The compiled counting of `counting`: one cast's messages under one policy.

The tree is turned so that the cast's origin is its root: `up[x]` is the next router towards the
origin and a link is named by its lower end x. Marks are numbers that grow (stamps), so that no
array is cleared between one collector and the next.
"""

from typing import Any, NamedTuple

import numpy as np

from roamcast.model.kernels import kernel

_NONE = -1

# What `count_cast` returns, in this order.
ASKS, ANSWERS, RESOLVES, ANSWER_VIDS = 0, 1, 2, 3
RECEIVERS, RECEIVERS_MAX, VIDS, VIDS_MAX, VIDS_UNSPLIT = 4, 5, 6, 7, 8
COLLECTORS, MATCHES, DELAY, DELAY_UNWAITED, DELAY_LAST, PEOPLE, DELAY_FIRST = range(9, 16)
COUNTS = 16


class ContextColumns(NamedTuple):
    """Contexts by router: those of router r are `starts[r]` to `starts[r + 1]`."""

    starts: Any
    trusted: Any
    vids: Any
    people: Any


class Scratch(NamedTuple):
    """Arrays by router, vid or person that one cast's multicasts share; -1 is unmarked."""

    above: Any  # routers between a collector and the origin
    trusted_seen: Any
    vid_seen: Any
    link_seen: Any
    distance: Any  # hops from the collector to a trusted node
    receivers_on: Any
    vids_on: Any
    links: Any  # the links that carry something, in the order of their first use
    first: Any  # of each person, the least delay so far


@kernel
def turned(parents: Any, origin: int) -> Any:
    """Return the parents of the same tree with `origin` as its root."""
    up = parents.copy()
    below, at = _NONE, origin
    while at >= 0:
        above = parents[at]
        up[at] = below
        below, at = at, above
    return up


@kernel
def reached(up: Any, goals: Any) -> Any:
    """Return the routers on the paths from the root to the goals, each after the one above it.

    Also the number of links that each router forwards over, and the hops to each from the root.
    """
    nodes = len(up)
    order = np.empty(nodes, np.int64)
    forwards = np.zeros(nodes, np.int64)
    hops = np.full(nodes, _NONE, np.int64)
    count = 0
    for goal in goals:
        length = 0
        at = goal
        while at >= 0 and hops[at] == _NONE:
            hops[at] = length  # up from the goal, until its hops from the root are known
            length += 1
            at = up[at]
        first = 0 if at < 0 else hops[at] + 1
        at = goal
        for place in range(length - 1, -1, -1):
            order[count + place] = at
            hops[at] = first + place
            if up[at] >= 0:
                forwards[up[at]] += 1
            at = up[at]
        count += length
    return order[:count], forwards, hops


@kernel
def collectors_of(up: Any, order: Any, forwards: Any, branching: int) -> Any:
    """Return of each router on the way its n-th branching point; -1 with fewer than n."""
    collector = np.full(len(up), _NONE, np.int64)
    seen = np.zeros(len(up), np.int64)
    for node in order:
        above = up[node]
        if above >= 0:
            seen[node] = seen[above]
            collector[node] = collector[above]
        if forwards[node] > 1:
            seen[node] += 1
            if seen[node] == branching:
                collector[node] = node
    return collector


@kernel
def count_cast(
    parents: Any,
    archive: Any,
    ends: Any,
    origin: int,
    addressed: Any,
    branching: int,
    out: Any,
) -> Any:
    """Count one cast's messages; while `out` has room, write each as a row.

    `ends` has the number of vids and of people. A row is (phase, from, to, receivers, vids).
    """
    counts = np.zeros(COUNTS, np.int64)
    up = turned(parents, origin)
    order, forwards, depth = reached(up, addressed)
    collector = collectors_of(up, order, forwards, branching)
    row = 0
    for node in order:
        if up[node] >= 0:
            counts[ASKS] += 1
            row = _write(out, row, 0, (up[node], node), 0, 0)
    answered = _answer_vids(up, collector, addressed, archive, ends[0])
    for node in order:
        if collector[node] >= 0 and collector[node] != node:
            counts[ANSWERS] += 1
            counts[ANSWER_VIDS] += answered[node]
            row = _write(out, row, 1, (node, up[node]), 0, answered[node])
    # Access nodes by who resolves for them: themselves, or the branching point that collects.
    resolver = np.where(collector[addressed] < 0, addressed, collector[addressed])
    heads, following = _chained(resolver, len(up))
    scratch = Scratch(
        np.full(len(up), _NONE, np.int64),
        np.full(len(up), _NONE, np.int64),
        np.full(ends[0], _NONE, np.int64),
        np.full(len(up), _NONE, np.int64),
        np.zeros(len(up), np.int64),
        np.zeros(len(up), np.int64),
        np.zeros(len(up), np.int64),
        np.empty(len(up), np.int64),
        np.full(ends[1], _NONE, np.int64),
    )
    members = np.empty(len(addressed), np.int64)
    for stamp in range(len(addressed)):
        root = resolver[stamp]
        count = 0
        place = heads[root]
        while place >= 0:
            members[count] = addressed[place]
            count += 1
            place = following[place]
        heads[root] = _NONE  # its other members find it done
        used = _multicast(up, depth, archive, root, members[:count], stamp, scratch, counts)
        for number in range(used):
            low = scratch.links[number]
            ways = (low, up[low]) if scratch.above[low] == stamp else (up[low], low)
            row = _write(out, row, 2, ways, scratch.receivers_on[low], scratch.vids_on[low])
    return counts, row


@kernel
def _write(out: Any, row: int, phase: int, ways: Any, receivers: int, vids: int) -> int:
    if row == len(out):
        return row
    out[row, 0] = phase
    out[row, 1] = ways[0]
    out[row, 2] = ways[1]
    out[row, 3] = receivers
    out[row, 4] = vids
    return row + 1


@kernel
def _chained(keys: Any, end: int) -> Any:
    """Return for each key below `end` its first place, and for each place the next of its key."""
    heads = np.full(end, _NONE, np.int64)
    following = np.full(len(keys), _NONE, np.int64)
    for place in range(len(keys) - 1, -1, -1):
        following[place] = heads[keys[place]]
        heads[keys[place]] = place
    return heads, following


@kernel
def _answer_vids(up: Any, collector: Any, addressed: Any, archive: Any, vids_end: int) -> Any:
    """Return of each router the number of distinct vids that its answer has."""
    starts = archive.starts
    count = 0
    for node in addressed:
        count += starts[node + 1] - starts[node]
    which = np.empty(count, np.int64)
    where = np.empty(count, np.int64)
    count = 0
    for node in addressed:
        if collector[node] >= 0:
            for context in range(starts[node], starts[node + 1]):
                which[count] = archive.vids[context]
                where[count] = node
                count += 1
    # The contexts of one vid lie at several nodes: a link that one of them has passed counts once.
    heads, following = _chained(which[:count], vids_end)
    found = np.zeros(len(up), np.int64)
    passed = np.full(len(up), _NONE, np.int64)
    for vid in range(vids_end):
        place = heads[vid]
        while place >= 0:
            at = where[place]
            while collector[at] != at and passed[at] != vid:
                passed[at] = vid
                found[at] += 1
                at = up[at]
            place = following[place]
    return found


@kernel
def _multicast(
    up: Any,
    depth: Any,
    archive: Any,
    root: int,
    members: Any,
    stamp: int,
    scratch: Any,
    counts: Any,
) -> int:
    """Send the vids of `members` from `root` to their trusted nodes; return the links used."""
    waited = 0
    for node in members:
        waited = max(waited, 2 * depth[node] - depth[root])
    at = root
    while at >= 0:
        scratch.above[at] = stamp
        at = up[at]
    used = distinct = 0
    for node in members:
        for context in range(archive.starts[node], archive.starts[node + 1]):
            goal, vid = archive.trusted[context], archive.vids[context]
            newcomer = scratch.trusted_seen[goal] != stamp
            fresh = scratch.vid_seen[vid] != stamp
            scratch.trusted_seen[goal] = scratch.vid_seen[vid] = stamp
            distinct += fresh
            if fresh:  # a trusted node that is new has a vid that is new
                used = _carry(up, stamp, root, goal, newcomer, scratch, used)
            onward = scratch.distance[goal]
            counts[DELAY_UNWAITED] += 2 * depth[node] - depth[root] + onward
            _deliver(archive.people[context], waited + onward, scratch, counts)
    counts[COLLECTORS] += distinct > 0
    counts[RESOLVES] += used
    counts[VIDS_UNSPLIT] += used * distinct
    for number in range(used):
        low = scratch.links[number]
        receivers, vids = scratch.receivers_on[low], scratch.vids_on[low]
        counts[RECEIVERS] += receivers
        counts[RECEIVERS_MAX] = max(counts[RECEIVERS_MAX], receivers)
        counts[VIDS] += vids
        counts[VIDS_MAX] = max(counts[VIDS_MAX], vids)
    return used


@kernel
def _deliver(person: int, delay: int, scratch: Any, counts: Any) -> None:
    counts[MATCHES] += 1
    counts[DELAY] += delay
    counts[DELAY_LAST] = max(counts[DELAY_LAST], delay)
    before = scratch.first[person]
    if before == _NONE:
        counts[PEOPLE] += 1
    if before == _NONE or delay < before:
        counts[DELAY_FIRST] += delay - max(before, 0)
        scratch.first[person] = delay


@kernel
def _carry(
    up: Any, stamp: int, root: int, goal: int, newcomer: bool, scratch: Any, used: int
) -> int:
    """Add a vid, and its trusted node if it is new, to the links from `root` to `goal`.

    Routers above the root are marked: the path climbs from the root to the first of them that is
    also above the goal, and descends from there.
    """
    far = 0
    at = goal
    while scratch.above[at] != stamp:
        used = _load(at, stamp, newcomer, scratch, used)
        far += 1
        at = up[at]
    meeting = at
    at = root
    while at != meeting:
        used = _load(at, stamp, newcomer, scratch, used)
        far += 1
        at = up[at]
    scratch.distance[goal] = far
    return used


@kernel
def _load(link: int, stamp: int, newcomer: bool, scratch: Any, used: int) -> int:
    if scratch.link_seen[link] != stamp:
        scratch.link_seen[link] = stamp
        scratch.receivers_on[link] = scratch.vids_on[link] = 0
        scratch.links[used] = link
        used += 1
    scratch.receivers_on[link] += newcomer
    scratch.vids_on[link] += 1
    return used
