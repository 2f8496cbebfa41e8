"""What stays open ends with its token; a service whose disk refuses says so until it is well."""

import asyncio
import random
from pathlib import Path

import pytest

from roamcast.errors import RoamcastError
from roamcast.live.auth.admission import TokenKeys
from roamcast.live.auth.grants import OpenGrants
from roamcast.live.config.settings import Settings
from roamcast.live.observe.metrics import Metrics
from roamcast.live.service.service import Service
from roamcast.live.store.store import SqliteStore
from roamcast.model.contexts import Context

NOW = 1_794_800_000_000_000
SECOND = 1_000_000
DEADLINE_S = 60.0


def test_a_connection_ends_with_its_grant_once_and_for_the_right_reason(tmp_path: Path) -> None:
    keys = TokenKeys.open(tmp_path, random_bytes=random.Random(1).randbytes, skew_s=0)
    now = [NOW]
    standing = OpenGrants(keys, lambda: now[0])
    said: dict[str, list[str]] = {name: [] for name in ("brief", "revoked", "closed", "stays")}
    tokens = {
        name: keys.issue(name, ["read"], lifetime_s=10 if name != "stays" else 100, now=NOW)
        for name in said
    }
    held = {name: standing.held(keys.check(tokens[name], NOW), said[name].append) for name in said}
    for one in held.values():
        one.__enter__()
    standing.check()
    assert not any(said.values())
    keys.revoke(tokens["revoked"], NOW)
    held["closed"].__exit__(None, None, None)
    standing.check()
    assert [name for name in said if said[name]] == ["revoked"]
    now[0] = NOW + 10 * SECOND
    standing.check()
    standing.check()
    assert [len(reasons) for reasons in said.values()] == [1, 1, 0, 0]
    assert "expired" in said["brief"][0]
    assert "revoked" in said["revoked"][0]
    for name in ("brief", "revoked", "stays"):
        held[name].__exit__(None, None, None)


def test_a_key_file_that_vanished_is_told_once_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        standing = OpenGrants(TokenKeys.open(tmp_path), lambda: NOW)
        path, aside = tmp_path / "keys.json", tmp_path / "aside"
        for told in (1, 2):
            path.rename(aside)
            for _ in range(3):
                standing._again()
                standing.stop()
            assert len(caplog.records) == told
            aside.rename(path)
            standing._again()
            standing.stop()

    asyncio.run(body())


def test_a_service_is_not_ready_while_its_disk_refuses_and_finds_out_itself_when_it_is_well(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        disk = SqliteStore.open(tmp_path / "store.db")
        service = Service(Settings(), disk=disk, keys=TokenKeys.open(tmp_path), metrics=Metrics())
        service.start()
        assert service.ready
        context = Context("v", "hq/1", None, {"text": "x" * 3_000}, service.clock(), None)
        with disk._using:
            pages = disk._connection.execute("PRAGMA page_count").fetchone()[0]
            disk._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(RoamcastError, match="the disk refused"):
            await service.publish("ada", context)
        assert not service.ready
        with disk._using:
            disk._connection.execute("PRAGMA max_page_count = 1000000")
        end = asyncio.get_running_loop().time() + DEADLINE_S
        while not service.ready:
            assert asyncio.get_running_loop().time() < end
            await asyncio.sleep(0.01)
        assert await service.publish("ada", context)
        await service.goodbye()
        assert not service.ready
        await service.stop()

    asyncio.run(body())
