"""A service on several hosts: whoever takes over is found, and an older one is not gone back to."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import msgspec
import pytest

from roamcast.channels.failover.epochs import epoch_at
from roamcast.client import Change, connect
from roamcast.client.asking import Asking
from roamcast.errors import AuthError, InputError, UnreachableError
from roamcast.transport.address import HOSTS_MAX, Hosts, ServiceAddress, find
from roamcast.transport.http import HttpClient
from tests.client.test_resuming import collect, mirror_of
from tests.strategies_service import QUICK, TOKEN, Service, in_loop, until
from tests.transport.test_http import answering

SEATS = ("a", "b")


def urls(hosts: Hosts) -> list[str]:
    return [one.url for one in hosts.all()]


def test_several_hosts_are_said_with_commas_between() -> None:
    found = find("http://a:1, http://b:2/", "t", environment={})
    assert found == ServiceAddress("http://a:1", "t", ("http://b:2",))
    assert urls(Hosts(found)) == ["http://a:1", "http://b:2"]
    with pytest.raises(InputError):
        find("http://a:1,here", "t", environment={})


def test_who_answered_is_asked_first_and_who_was_passed_over_last() -> None:
    hosts = Hosts(ServiceAddress("http://a", "t", ("http://b", "http://c")))
    hosts.answered("http://c")
    assert urls(hosts) == ["http://c", "http://a", "http://b"]
    hosts.passed_over("http://a")
    assert urls(hosts) == ["http://c", "http://b", "http://a"]
    assert hosts.current == ServiceAddress("http://c", "t")


def test_hosts_that_a_service_tells_of_are_bounded_and_never_less_secure() -> None:
    hosts = Hosts(ServiceAddress("https://a", "t"))
    hosts.learn(["http://b", "https://c", "nonsense", "https://a"])
    assert urls(hosts) == ["https://a", "https://c"]
    hosts.learn(f"https://h{number}" for number in range(2 * HOSTS_MAX))
    assert len(urls(hosts)) == HOSTS_MAX


@contextlib.contextmanager
def deaf() -> Iterator[str]:
    """Take connections and say nothing, as a host does that hangs."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_question_goes_to_the_host_that_takes_it() -> None:
    with answering(200, b'{"count": 3}') as there:
        (right,) = urls(there._http.hosts)
        asking = Asking(HttpClient(ServiceAddress("http://127.0.0.1:1", "key", (right,))))
        assert asyncio.run(asking.count()) == 3
    with pytest.raises(UnreachableError, match="no service answers"):
        asyncio.run(asking.count())


@in_loop
async def test_a_session_finds_the_host_that_took_over_and_nobody_seems_to_have_left() -> None:
    one, two = Service(name="a"), Service(name="b")
    one.seats = two.seats = SEATS
    await two.start()
    await two.kill()  # its port is known now
    await one.start()
    one.hosts = two.hosts = (one.url, two.url)
    me, you = await connect(one.url, TOKEN, device="me"), await connect(one.url, TOKEN, device="u")
    await me.publish("p", place="hq/1", type="person")
    told: list[Change] = []
    reader = asyncio.create_task(collect(you.watch("type = 'person'"), told))
    await until(lambda: len(told) == 2)
    for turn in range(2):
        await one.kill()
        await until(lambda: not me.connected)
        await two.start()
        await until(lambda: me.connected and you.connected)
        await me.publish("p", place=f"hq/moved-{turn}", type="person")
        there = {"p": f"hq/moved-{turn}"}  # else the next kill may come before it is told
        await until(lambda there=there: mirror_of(told) == there)
        one, two = two, one
    assert [change.kind for change in told] == ["appeared", "current", "changed", "changed"]
    for session in (me, you):
        await session.close()
    await reader
    await one.kill()


@in_loop
async def test_a_host_that_hangs_does_not_keep_a_session_from_the_other() -> None:
    service = Service()
    await service.start()
    with deaf() as hangs:
        session = await connect(f"{hangs},{service.url}", TOKEN, timeout_s=60)
        await session.appear(place="hq/1")
        await session.close()
    await service.kill()


@in_loop
async def test_a_session_never_goes_back_to_an_older_map_but_tells_its_server() -> None:
    quick = msgspec.structs.replace(QUICK, server_timeout_us=500_000)
    older, newer = Service(quick, name="a"), Service(quick, name="b")
    older.seats = newer.seats = SEATS
    await newer.start(epoch_at(newer.now(), 1, 0))
    await older.start(newer.machine.epoch - 1_000_000)
    older.hosts = newer.hosts = (older.url, newer.url)
    before = older.machine.merging.newest
    session = await connect(newer.url, TOKEN)
    view = session.watch("TRUE")
    await session.publish("p", place="hq/1")
    epoch = newer.machine.epoch
    await newer.kill()
    await until(lambda: older.welcomes > 1)
    await until(lambda: older.machine.merging.newest == epoch, 60)
    assert before < epoch
    assert len(older.machine.map) == 0
    assert list(view.contexts) == ["p"]
    await older.kill()
    await older.start(epoch_at(older.now(), 0, epoch))
    await until(lambda: len(older.machine.map) == 1)
    await session.close()
    await older.kill()


@in_loop
async def test_a_key_that_is_refused_everywhere_is_said() -> None:
    service = Service()
    await service.start()
    with pytest.raises(AuthError):
        await connect(f"http://127.0.0.1:1,{service.url}", "wrong")
    with pytest.raises(UnreachableError, match=r"no service answers at http://127\.0\.0\.1:1 "):
        await connect("http://127.0.0.1:1,http://127.0.0.1:2", "key")
    await service.kill()
