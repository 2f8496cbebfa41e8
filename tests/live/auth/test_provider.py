"""Tokens of an identity provider that runs on loopback: discovery, keys, rotation, mapping."""

import asyncio
import http.server
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

from roamcast.errors import AuthError, SettingsError, StoreError
from roamcast.live.auth.provider import FETCH_S_MIN, KEYS_AGE_S_MAX, Provider
from roamcast.live.config.settings import OidcSection, Settings, parse_settings
from tests.live.in_process import Asked, gate

NOW = 1_700_000_000_000_000
SECOND = 1_000_000


class IdentityProvider:
    """A small OpenID Connect provider: discovery, JWKS, and tokens signed by its last key."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.issuer = ""
        self.fetches = 0
        self.up = True
        self.rotate()

    def rotate(self, *, drop: bool = False) -> None:
        if drop:
            self.keys.clear()
        number = len(self.keys)
        make: Any = RSAKey if number % 2 == 0 else ECKey
        kid = f"k{number}{'d' * drop}"
        self.keys.append(make.generate_key(2048 if make is RSAKey else "P-256", {"kid": kid}))

    def token(self, now: int = NOW, key: Any = None, algorithm: str = "", **more: Any) -> str:
        key = key or self.keys[-1]
        seconds = now // SECOND
        claims = {
            "iss": self.issuer,
            "sub": "u-17",
            "aud": ["roamcast", "other"],
            "iat": seconds,
            "exp": seconds + 600,
            "scope": "openid map:read map:write",
            "groups": ["staff"],
            **more,
        }
        chosen = algorithm or ("RS256" if isinstance(key, RSAKey) else "ES256")
        header = {"alg": chosen, "kid": self.keys[-1].kid}
        return jwt.encode(header, claims, key, algorithms=[chosen])

    @contextmanager
    def serving(self) -> Iterator["IdentityProvider"]:
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.fetches += 1
                document: Any = {"keys": [key.as_dict(private=False) for key in provider.keys]}
                if self.path == "/realm/.well-known/openid-configuration":
                    uri = f"{provider.issuer}/keys"
                    document = {"issuer": provider.issuer, "jwks_uri": uri}
                body = json.dumps(document).encode()
                self.send_response(200 if provider.up else 503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{server.server_port}/realm"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider().serving() as running:
        yield running


def section(provider: IdentityProvider, **more: Any) -> OidcSection:
    mapped: Any = {"map:read": "read", "map:write": "publish"}
    return OidcSection(issuer=provider.issuer, scopes=mapped, **more)


def told(body: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await body()

    asyncio.run(run())


def test_a_token_grants_what_the_settings_map(provider: IdentityProvider) -> None:
    checks = Provider(section(provider), skew_s=60)

    async def body() -> None:
        grant = await checks.check(provider.token(), NOW)
        assert (grant.subject, grant.groups) == ("oidc:u-17", {"oidc:staff"})
        assert grant.scopes == ("read", "publish")
        assert grant.expires_us == NOW + 600 * SECOND
        assert provider.fetches == 2
        for _ in range(3):
            await checks.check(provider.token(scope="openid"), NOW)
        assert (await checks.check(provider.token(scope="admin"), NOW)).scopes == ()
        assert provider.fetches == 2

    told(body)


def test_keys_rotate_and_a_key_that_is_gone_no_longer_counts(provider: IdentityProvider) -> None:
    checks = Provider(section(provider), skew_s=60)

    async def body() -> None:
        first = provider.token()
        await checks.check(first, NOW)
        provider.rotate()
        later = NOW + FETCH_S_MIN * SECOND
        await checks.check(provider.token(), later)
        await checks.check(first, later)
        provider.rotate(drop=True)
        later += 301 * SECOND
        await checks.check(first, later)  # the known keys count while new ones are fetched
        while checks._fetching is not None:
            await asyncio.sleep(0.01)
        with pytest.raises(AuthError, match="neither"):
            await checks.check(first, later + SECOND)

    told(body)


def test_unknown_keys_cost_one_fetch_in_ten_seconds(provider: IdentityProvider) -> None:
    checks = Provider(section(provider), skew_s=60)
    stranger = IdentityProvider()
    stranger.keys[0] = RSAKey.generate_key(2048, {"kid": "unknown"})

    async def body() -> None:
        await checks.check(provider.token(), NOW)
        for second in range(FETCH_S_MIN + 1):
            with pytest.raises(AuthError):
                await checks.check(stranger.token(), NOW + second * SECOND)
        assert provider.fetches == 4

    told(body)


def test_keys_count_for_a_day_while_the_provider_is_away(provider: IdentityProvider) -> None:
    checks = Provider(section(provider), skew_s=60)

    async def body() -> None:
        await checks.check(provider.token(), NOW)
        provider.up = False
        now = NOW + KEYS_AGE_S_MAX * SECOND
        await checks.check(provider.token(now), now)
        with pytest.raises(StoreError, match="does not answer"):
            await checks.check(provider.token(now), now + SECOND)

    told(body)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"iss": "http://127.0.0.1/other"}, "issuer"),
        ({"aud": "other"}, "not for"),
        ({"aud": None}, "not for"),
        ({"exp": NOW // SECOND - 61}, "expired"),
        ({"exp": "never"}, "until when"),
        ({"nbf": NOW // SECOND + 61}, "not valid yet"),
        ({"sub": ""}, "names"),
        ({"sub": "a#b"}, "names"),
        ({"sub": "x" * 124}, "names"),
        ({"groups": ["*"]}, "names"),
    ],
)
def test_what_does_not_fit_is_refused(
    provider: IdentityProvider, wrong: dict[str, Any], said: str
) -> None:
    checks = Provider(section(provider), skew_s=60)

    async def body() -> None:
        with pytest.raises(AuthError, match=said):
            await checks.check(provider.token(**wrong), NOW)
        assert await checks.check(provider.token(sub="x" * 123), NOW)

    told(body)


def test_no_shared_secret_and_no_other_key_signs(provider: IdentityProvider) -> None:
    checks = Provider(section(provider), skew_s=60)
    shared = OctKey.import_key(b"x" * 32)
    other = RSAKey.generate_key(2048)

    async def body() -> None:
        for token in (provider.token(key=shared, algorithm="HS256"), provider.token(key=other)):
            with pytest.raises(AuthError, match="signature"):
                await checks.check(token, NOW)
        unsigned = "eyJhbGciOiJub25lIiwia2lkIjoiazAifQ.e30."
        for token in (unsigned, "", "a.b", "a.b.c", "ä.b.c"):
            with pytest.raises(AuthError):
                await checks.check(token, NOW)

    told(body)


def test_a_service_takes_both_kinds_of_tokens(provider: IdentityProvider, tmp_path: Path) -> None:
    async def body() -> None:
        async with gate(tmp_path, Settings(oidc=section(provider))) as asked:
            assert (await asked.ask("GET", "/count")).status == 200
            mine, asked.token = asked.token, provider.token(asked.service.clock())
            await publish(asked)
            asked.token = (await asked.ask("POST", "/tokens", {"scopes": ["read"]})).json["token"]
            assert (await asked.ask("GET", "/contexts/p")).status == 200
            assert (await asked.ask("DELETE", "/contexts/p")).status == 403
            asked.token = mine[:-3] + "AAA"
            assert (await asked.ask("GET", "/count")).status == 401

    async def publish(asked: Asked) -> None:
        feature = {"type": "Feature", "geometry": None, "properties": {"place": "hq"}}
        assert (await asked.ask("PUT", "/contexts/p", feature)).status == 201
        assert (await asked.ask("GET", "/changes")).status == 403

    told(body)


@pytest.mark.parametrize("issuer", ["http://id.example", "id.example", "https://a.example/?x=1"])
def test_an_issuer_is_behind_https_or_on_this_machine(issuer: str) -> None:
    with pytest.raises(SettingsError):
        parse_settings(f'[oidc]\nissuer = "{issuer}"\n')
