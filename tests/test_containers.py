"""What Dockerfile and compose.yaml say works without Docker: the same steps, on this machine."""

import asyncio
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts.constraints import constraints

from roamcast.client import connect
from roamcast.live.config.settings import load_settings
from tests.nats_server import NatsServer
from tests.processes import Child, roamcast

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))
DEADLINE_S = 120.0
OURS = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Machine:
    """This machine in place of the containers: a folder for each volume, loopback for names."""

    def __init__(self, folder: Path) -> None:
        self.trust_port = free_port()
        self.folders = {name: folder / name for name in COMPOSE["volumes"]}
        for one in self.folders.values():
            one.mkdir(mode=0o700)
        self.nats = NatsServer(folder, settings=self.folders["config"] / "nats.conf")
        self.nats.port = free_port()

    def words(self, service: str) -> list[str]:
        """Give a service's command with the folders of this machine."""
        mounts = [one.split(":")[:2] for one in COMPOSE["services"][service]["volumes"]]
        paths = {path: self.folders[name] for name, path in mounts if name in self.folders}
        words = []
        for word in COMPOSE["services"][service]["command"]:
            for path, here in paths.items():
                word = re.sub(rf"^{path}(?=/|$)", str(here), word)
            words.append("127.0.0.1" if word == "0.0.0.0" else word)
        return words

    def set_up(self) -> None:
        script = ROOT / COMPOSE["services"]["setup"]["entrypoint"][1].lstrip("/")
        environment = {
            **OURS,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ROAMCAST_NATS": self.nats.url,
            "ROAMCAST_TRUST_URL": f"https://127.0.0.1:{self.trust_port}",
        }
        subprocess.run(["sh", str(script), *self.words("setup")], env=environment, check=True)

    def read(self) -> dict[Path, bytes]:
        """Give everything in the volumes."""
        every = [path for folder in self.folders.values() for path in folder.rglob("*")]
        return {path: path.read_bytes() for path in every if path.is_file()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return Machine(tmp_path)


@pytest.mark.soak
@pytest.mark.process
def test_the_containers_of_compose_carry_a_cast_to_somebody_without_a_name(
    machine: Machine,
) -> None:
    machine.set_up()
    made = machine.read()
    machine.set_up()
    assert machine.read() == made  # a second `docker compose up` changes nothing
    assert not [path for path in made if path.stat().st_mode & 0o077]
    settings = load_settings(machine.folders["config"] / "roamcast.toml")
    assert (
        f"{settings.server.port}:{settings.server.port}" in COMPOSE["services"]["broker"]["ports"]
    )
    with (
        machine.nats,
        roamcast(*machine.words("trust"), "--json", "--port", str(machine.trust_port)) as trusted,
        roamcast(*machine.words("broker"), "--json", "--port", "0") as broker,
    ):
        asyncio.run(_carried(machine, trusted.answer(), broker.answer()))


async def _carried(machine: Machine, trust: dict[str, str], broker: dict[str, Any]) -> None:
    name = subprocess.run(
        [sys.executable, "-m", "roamcast", "token", "--data", str(machine.folders["trust"]),
         "--subject", "ada", "--scope", "subscribe"],
        capture_output=True, text=True, check=True, env=OURS,
    ).stdout.strip()  # fmt: skip
    certificate = ssl.create_default_context(cafile=str(machine.folders["config"] / "ca.pem"))
    keys = machine.folders["config"].parent / "ada.keys"
    where = {"trust": (trust["url"], name), "tls": certificate, "keys": keys}
    async with connect(broker["url"], name, anonymous=True, **where) as me:
        await me.appear("hq/3", type="person")
        async with connect(broker["url"], broker["token"], tls=certificate) as sender:
            await sender.cast("within(place, 'hq/3')", "from a container")
        async with asyncio.timeout(DEADLINE_S):
            async for mail in me.inbox():
                assert mail.text == "from a container"
                break


def run_lines() -> Iterator[str]:
    """Give what the Dockerfile runs, without what only an image needs: packages and users."""
    for line in (ROOT / "Dockerfile").read_text("utf-8").splitlines():
        if line.startswith("RUN ") and not re.match(r"RUN (apt-get|useradd)", line):
            yield line.removeprefix("RUN ")


@pytest.mark.soak
@pytest.mark.process
def test_the_steps_of_the_dockerfile_install_a_service_without_spark(tmp_path: Path) -> None:
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "HEAD"], capture_output=True, check=True
    ).stdout
    (tmp_path / "source.tar").write_bytes(packed)
    with tarfile.open(tmp_path / "source.tar") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not before 3.11.4
        archive.extractall(tmp_path / "src")
    venv.create(tmp_path / "venv", with_pip=True)
    environment = {
        "PATH": f"{tmp_path / 'venv' / 'bin'}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        **{name: value for name, value in OURS.items() if name.lower().startswith(("pip", "npm"))},
    }  # fmt: skip
    for line in run_lines():
        for path in ("/constraints.txt", "/wheels"):
            line = line.replace(path, str(tmp_path / path.lstrip("/")))
        subprocess.run(["sh", "-ec", line], cwd=tmp_path / "src", env=environment, check=True)
    listed = subprocess.run(
        ["pip", "list", "--format", "json"], env=environment, capture_output=True, check=True,
        executable=str(tmp_path / "venv" / "bin" / "pip"),
    ).stdout  # fmt: skip
    installed = {one["name"] for one in json.loads(listed)}
    assert "roamcast" in installed
    assert not installed & {"pyspark", "pandas"}
    with Child(str(tmp_path / "venv" / "bin" / "roamcast"), "serve", "--json", "--port", "0",
               "--data", str(tmp_path / "data")) as served:  # fmt: skip
        assert served.answer()["url"].startswith("http://127.0.0.1:")


def test_a_lock_becomes_constraints() -> None:
    lock = "a==1.0 \\\n    --hash=sha256:00\n    # via b\nb-c==2.1 ; sys_platform == 'win32' \\\n"
    assert constraints(lock) == "a==1.0\nb-c==2.1 ; sys_platform == 'win32'\n"


REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "pandas", "grpc"):
            raise ModuleNotFoundError(f"no {name} here")
sys.meta_path.insert(0, Refuse())
import importlib.util as util
found = util.find_spec
util.find_spec = lambda name, package=None: None if name in ("pyspark", "pandas") else found(name)
"""


@pytest.mark.process
def test_without_spark_all_but_the_pipeline_works_and_that_says_what_it_lacks() -> None:
    code = (
        f"{REFUSE}\nimport roamcast.client, roamcast.commands._demo\n"
        "import roamcast.live.service.service\n"
        "from roamcast.errors import MissingError\n"
        "from roamcast.pipeline.spark.session import start\n"
        "try:\n    start()\nexcept MissingError as error:\n    print(error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=OURS,
    ).stdout.strip()  # fmt: skip
    assert told == "no pyspark and no pandas: pip install 'roamcast[pipeline]' brings Spark"
