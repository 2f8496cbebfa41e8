"""Two hosts in network namespaces, which the relay between them can part and join.

Host a is in the server's network, host b in that of the clients (tests/live/namespaces.py).
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roamcast.live.auth.admission import SCOPES, TokenKeys
from tests.live.certificates import write_certificate
from tests.live.namespaces import SERVER, Namespaces, run
from tests.processes import Child, roamcast

DEADLINE_S = 240.0
PORT = 8443
CURL = ("curl", "-s", "-f", "--max-time", "20")


class Parted:
    """The hosts, their settings, and questions to each of them from its own side."""

    def __init__(self, folder: Path, network: Namespaces) -> None:
        self.network = network
        self.bundle = folder / "bundle.pem"
        self.where = {"a": SERVER, "b": network.client_addresses[0]}
        self.urls = ",".join(f"https://{one}:{PORT}" for one in self.where.values())
        self._around = {"a": network.around("server"), "b": network.around("client0")}
        self._folder = folder
        self._keepers: dict[str, Child] = {}

    def make(self) -> None:
        """Write keys, certificates, the secret and both hosts' settings."""
        secret = self._folder / "secret"
        secret.write_text(os.urandom(32).hex(), encoding="utf-8")
        secret.chmod(0o600)
        hosts = "".join(f'{n} = "https://{one}:{PORT}"\n' for n, one in self.where.items())
        bundle = b""
        for name, address in self.where.items():
            data = self._folder / name
            data.mkdir(mode=0o700)
            certificate, key = write_certificate(data, address)
            bundle += certificate.read_bytes()
            (data / "roamcast.toml").write_text(
                f'[server]\nhost = "{address}"\nport = {PORT}\nname = "{name}"\n'
                f'data = "{data}"\ntls_cert = "{certificate}"\ntls_key = "{key}"\n'
                f'[journal]\non = false\n[cluster]\nsilent_s = 5\nsecret_file = "{secret}"\n'
                f'tls_ca = "{self.bundle}"\n[cluster.replicas]\n{hosts}',
                encoding="utf-8",
            )
        self.bundle.write_bytes(bundle)
        self._keys = TokenKeys.open(self._folder / "a")
        copy = self._folder / "b" / "keys.json"
        copy.write_bytes((self._folder / "a" / "keys.json").read_bytes())
        copy.chmod(0o600)
        self._operator = self.token("operator")

    def token(self, subject: str) -> str:
        now = time.time_ns() // 1000
        return self._keys.issue(subject, SCOPES, lifetime_s=3_600, now=now)

    @contextlib.contextmanager
    def keep(self, name: str) -> Iterator[None]:
        """Run a host's keeper."""
        settings = str(self._folder / name / "roamcast.toml")
        words = ("keep", "--json", "--settings", settings)
        with roamcast(*words, around=self._around[name]) as self._keepers[name]:
            yield

    def serves(self, name: str) -> None:
        """Wait until a host says that it serves."""
        assert self._keepers[name].line(), f"the keeper of {name} ended"

    def followed(self, name: str) -> None:
        """Wait until a host serves and the other stands by."""
        end = time.monotonic() + DEADLINE_S
        while True:
            with contextlib.suppress(AssertionError):
                if 'what="followers"} 1.0' in self._ask(name, "/metrics"):
                    return
            assert time.monotonic() < end, f"nobody follows {name}"
            time.sleep(0.1)

    def vids(self, name: str) -> set[str]:
        page = json.loads(self._ask(name, "/collections/contexts/items?limit=10000"))
        return {one["id"] for one in page["features"]}

    def put(self, name: str, vid: str) -> None:
        feature = {"type": "Feature", "geometry": None, "properties": {"place": "lab/9"}}
        self._ask(name, f"/contexts/{vid}", "-X", "PUT", "-d", json.dumps(feature))

    def remove(self, name: str, vid: str) -> None:
        self._ask(name, f"/contexts/{vid}", "-X", "DELETE")

    def _ask(self, name: str, path: str, *more: Any) -> str:
        key = ("-H", f"Authorization: Bearer {self._operator}", "--cacert", str(self.bundle))
        kind = ("-H", "Content-Type: application/geo+json")
        url = f"https://{self.where[name]}:{PORT}{path}"
        return run(*self._around[name], *CURL, *key, *kind, *more, url)

    def cut(self) -> None:
        """Let nothing pass between the two networks."""
        relay = self.network.around("relay")
        run(*relay, "nft", "add", "table", "inet", "cut")
        chain = "{ type filter hook forward priority 0 ; }"
        run(*relay, "nft", f"add chain inet cut forward {chain}")
        for one, other in (("10.77.1", "10.77.2"), ("10.77.2", "10.77.1")):
            what = f"ip saddr {one}.0/24 ip daddr {other}.0/24"
            run(*relay, "nft", f"add rule inet cut forward {what} drop")

    def join(self) -> None:
        """Let everything pass again."""
        run(*self.network.around("relay"), "nft", "delete", "table", "inet", "cut")
