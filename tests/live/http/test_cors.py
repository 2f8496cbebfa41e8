"""CORS: pages of other origins may ask where the settings say so, and nowhere else."""

import asyncio
from pathlib import Path

import pytest

from roamcast.errors import SettingsError
from roamcast.live.config.settings import ServerSection, Settings, parse_settings
from tests.live.in_process import gate

MAPS = "https://maps.example"
ALLOW = "access-control-allow-origin"


def answers(folder: Path, origins: tuple[str, ...], origin: str) -> list[dict[str, str]]:
    """Ask as a page of an origin does: first the preflight, then the request."""

    async def body() -> list[dict[str, str]]:
        async with gate(folder, Settings(server=ServerSection(cors_origins=origins))) as asked:
            asking = {
                "origin": origin,
                "access-control-request-method": "PUT",
                "access-control-request-headers": "authorization,content-type",
            }
            preflight = await asked.ask("OPTIONS", "/contexts/p", headers=asking)
            answer = await asked.ask("GET", "/count", headers={"origin": origin})
            return [preflight.headers, answer.headers]

    return asyncio.run(body())


def test_without_the_setting_no_origin_is_allowed(tmp_path: Path) -> None:
    for headers in answers(tmp_path, (), MAPS):
        assert ALLOW not in headers


def test_an_origin_of_the_settings_is_allowed(tmp_path: Path) -> None:
    preflight, answer = answers(tmp_path, (MAPS,), MAPS)
    assert preflight[ALLOW] == answer[ALLOW] == MAPS
    assert "PUT" in preflight["access-control-allow-methods"]
    assert "authorization" in preflight["access-control-allow-headers"].lower()
    assert "access-control-allow-credentials" not in preflight


def test_another_origin_is_not(tmp_path: Path) -> None:
    for other in ("https://evil.example", "https://maps.example.evil", "http://maps.example"):
        for headers in answers(tmp_path / other.replace("/", ""), (MAPS,), other):
            assert ALLOW not in headers


@pytest.mark.parametrize(
    "origin", ["maps.example", "https://maps.example/", "ftp://a", "https://*"]
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(SettingsError, match="is no origin"):
        parse_settings(f'[server]\ncors_origins = ["{origin}"]\n')
