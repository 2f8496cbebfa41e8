"""Network namespaces: a server, a relay, and clients on a bridge behind it, each with losses.

    server ── 10.77.1.0/24 ── relay ── 10.77.2.0/24, a bridge ── client 0, client 1, …

The relay's namespace routes TCP; multicast passes only through the relay's process. Needs root.
"""

import functools
import json
import os
import shutil
import subprocess
from types import TracebackType
from typing import Any

SERVER = "10.77.1.2"
RELAY_FROM = "10.77.1.1"
RELAY_TO = "10.77.2.1"


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout


@functools.cache
def missing() -> str:
    """Say what this machine lacks for namespaces with losses, "" if nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian: {package})"
    name = f"roamcast-{os.getpid()}-try"
    try:
        run("ip", "netns", "add", name)
    except AssertionError as error:
        return f"no network namespaces here: {error}"
    try:
        drop(["ip", "netns", "exec", name], "udp dport 1", 50)
    except AssertionError as error:
        return f"no packet loss by nft here: {error}"
    finally:
        run("ip", "netns", "del", name)
    return ""


def drop(around: list[str], what: str, percent: int) -> None:
    """Lose a share of what comes into a namespace."""
    run(*around, "nft", "add", "table", "inet", "loss")
    chain = "{ type filter hook input priority 0 ; }"
    run(*around, "nft", f"add chain inet loss input {chain}")
    share = f"numgen random mod 100 < {percent}" if percent < 100 else ""
    run(*around, "nft", f"add rule inet loss input {what} {share} counter drop")


def dropped(around: list[str]) -> int:
    """How many packets were lost on purpose."""
    said = json.loads(run(*around, "nft", "-j", "list", "ruleset"))
    rules = [one["rule"] for one in said["nftables"] if "rule" in one]
    return sum(
        part["counter"]["packets"] for rule in rules for part in rule["expr"] if "counter" in part
    )


class Namespaces:
    """The network of the picture above; gone when the block ends."""

    def __init__(self, clients: int) -> None:
        self._mark = f"roamcast-{os.getpid()}"
        self._names = ["server", "relay", *(f"client{number}" for number in range(clients))]
        self.client_addresses = [f"10.77.2.{number + 10}" for number in range(clients)]

    def around(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", f"{self._mark}-{name}"]

    def ip(self, name: str, *command: str) -> None:
        run("ip", "-n", f"{self._mark}-{name}", *command)

    def __enter__(self) -> "Namespaces":
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def _build(self) -> None:
        for name in self._names:
            run("ip", "netns", "add", f"{self._mark}-{name}")
            self.ip(name, "link", "set", "lo", "up")
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        run(*self.around("relay"), "sh", "-c", forward)
        self.ip("relay", "link", "add", "bridge", "type", "bridge", "mcast_snooping", "0")
        self.ip("relay", "addr", "add", f"{RELAY_TO}/24", "dev", "bridge")
        self.ip("relay", "link", "set", "bridge", "up")
        self._cable("server", f"{SERVER}/24", RELAY_FROM, "to-server")
        self.ip("relay", "addr", "add", f"{RELAY_FROM}/24", "dev", "to-server")
        for number, address in enumerate(self.client_addresses):
            self._cable(f"client{number}", f"{address}/24", RELAY_TO, f"to-client{number}")
            self.ip("relay", "link", "set", f"to-client{number}", "master", "bridge")

    def _cable(self, name: str, address: str, gateway: str, other_end: str) -> None:
        peer = ("peer", "name", "eth0", "netns", f"{self._mark}-{name}")
        self.ip("relay", "link", "add", other_end, "type", "veth", *peer)
        self.ip("relay", "link", "set", other_end, "up")
        self.ip(name, "addr", "add", address, "dev", "eth0")
        self.ip(name, "link", "set", "eth0", "up")
        self.ip(name, "route", "add", "default", "via", gateway)

    def _remove(self) -> None:
        for name in self._names:
            gone: Any = ["ip", "netns", "del", f"{self._mark}-{name}"]
            subprocess.run(gone, capture_output=True, check=False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()
