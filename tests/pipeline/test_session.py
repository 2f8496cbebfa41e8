"""A session comes from one place, and says clearly what is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from roamcast.errors import InputError, MissingError
from roamcast.pipeline.spark import session
from roamcast.pipeline.spark.java import pass_on
from roamcast.pipeline.spark.session import Settings, check_connect, check_java, start


def java(folder: Path, version: str) -> Path:
    """Make a `java` that says it is of this version."""
    path = folder / "bin" / "java"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return folder


def test_the_master_is_the_argument_then_the_environment_then_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ROAMCAST_SPARK", raising=False)
    assert Settings().where == "local[*]"
    monkeypatch.setenv("ROAMCAST_SPARK", "spark://cluster:7077")
    assert Settings().where == "spark://cluster:7077"
    assert Settings(master="sc://server").where == "sc://server"
    assert Settings(master="sc://server").remote


@pytest.mark.parametrize("master", ["nonsense", "local[x]", "http://host", "spark://", "sc://"])
def test_what_is_no_master_is_refused(master: str) -> None:
    with pytest.raises(InputError, match="is no Spark master"):
        start(Settings(master=master))


def test_a_missing_java_is_told_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingError, match=r"openjdk-17-jre-headless.*check JAVA_HOME"):
        start(Settings(master="local[1]"))
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match="no `java` on PATH"):
        check_java()


@pytest.mark.process
@pytest.mark.parametrize(("version", "fits"), [("17.0.15", True), ("21", True), ("11.0.2", False)])
def test_java_must_be_new_enough(
    version: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, version)))
    if fits:
        check_java()
    else:
        with pytest.raises(MissingError, match="is version 11"):
            check_java()


@pytest.mark.process
def test_an_old_java_names_itself_1_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, "1.8.0_402")))
    with pytest.raises(MissingError, match="is version 8"):
        check_java()


def test_connect_says_which_packages_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda _name: None)
    with pytest.raises(MissingError, match="grpcio, grpcio-status, zstandard"):
        check_connect()


@pytest.mark.process
def test_importing_the_pipeline_starts_and_imports_no_spark() -> None:
    code = (
        "import sys, roamcast.pipeline.lookup.run, roamcast.pipeline.load;"
        "import roamcast.pipeline.spark.session;"
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("master", ["sc://127.0.0.1:1", "spark://127.0.0.1:1,127.0.0.1:2"])
def test_an_address_where_no_spark_answers_is_told_at_once(master: str) -> None:
    with pytest.raises(MissingError, match=f"no Spark at {master}: .*refused"):
        start(Settings(master=master))


def test_what_java_says_is_passed_on_without_its_warning_of_incubators() -> None:
    (source, java), (shown, target) = os.pipe(), os.pipe()
    os.write(java, b"WARNING: Using incubator modules: jdk.incubator.vector\nspark: lost\nhalf")
    os.close(java)
    pass_on(source, target)
    os.close(target)
    with os.fdopen(shown, "rb") as told:
        assert told.read() == b"spark: lost\nhalf"


def test_one_of_several_masters_is_enough() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        session.check_reachable(f"spark://127.0.0.1:1,127.0.0.1:{port}")
        session.check_reachable(f"sc://127.0.0.1:{port}/;token=x")
        session.check_reachable("local[2]")


def test_options_of_spark_are_given_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(session.CONF_VARIABLE, "spark.ui.enabled=true\nspark.ui.port=4050")
    assert session.given_options() == {"spark.ui.enabled": "true", "spark.ui.port": "4050"}
    monkeypatch.setenv(session.CONF_VARIABLE, "ui=true")
    with pytest.raises(InputError, match=r"no option of Spark: give spark\.NAME=VALUE"):
        session.given_options()
