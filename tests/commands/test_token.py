"""`roamcast token`: what it prints is accepted, what it ends is refused."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roamcast.errors import AuthError
from roamcast.live.auth.admission import TokenKeys

pytestmark = pytest.mark.process


def roamcast(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from roamcast.cli import main; main()"]
    return subprocess.run(
        [*program, "token", "--data", str(folder), *words],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_printed_token_is_accepted_until_it_is_revoked(tmp_path: Path) -> None:
    words = ["--subject", "ada", "--scope", "read", "--scope", "cast", "--group", "staff"]
    done = roamcast(*words, "--lifetime", "8h", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    now = time.time_ns() // 1000
    keys = TokenKeys.open(tmp_path)
    grant = keys.check(told["token"], now)
    assert (grant.subject, grant.scopes, grant.groups) == ("ada", ("read", "cast"), {"staff"})
    assert 0 < grant.expires_us - now <= 8 * 3_600 * 10**6
    assert told["id"] == grant.token_id

    done = roamcast("revoke", told["id"], folder=tmp_path)
    assert done.stdout == f"revoked {told['id']}\n"
    with pytest.raises(AuthError, match="revoked"):
        keys.check(told["token"], now)


def test_the_bare_command_prints_the_token_alone_and_rotation_can_end_it(tmp_path: Path) -> None:
    token = roamcast(folder=tmp_path).stdout.strip()
    keys, now = TokenKeys.open(tmp_path), time.time_ns() // 1000
    assert keys.check(token, now).scopes == ("read", "publish", "subscribe")
    assert json.loads(roamcast("rotate", "--json", folder=tmp_path).stdout)["key"]
    assert keys.check(token, now).subject == "me"
    assert (
        roamcast(
            "rotate", "--at-once", "--data", str(tmp_path), folder=tmp_path / "other"
        ).returncode
        == 0
    )
    with pytest.raises(AuthError):
        keys.check(token, now)


def test_a_folder_without_a_service_is_told(tmp_path: Path) -> None:
    for words in (["rotate"], ["revoke", "0" * 24]):
        done = roamcast(*words, folder=tmp_path / "typo")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"there is no service in {tmp_path / 'typo'}" in done.stderr
        assert not (tmp_path / "typo").exists()
    first = roamcast(folder=tmp_path / "new")
    assert first.returncode == 0
    assert first.stdout.count(".") == 2  # the token alone
    assert f"there is no service in {tmp_path / 'new'} yet" in first.stderr
    assert roamcast(folder=tmp_path / "new").stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lifetime", "soon"], "--lifetime takes a number with s, m, h or d"),
        (["--scope", "write"], "'write' is not a scope"),
        (["revoke", "x"], "neither a token nor a token's id"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    TokenKeys.open(tmp_path)
    done = roamcast(*words, folder=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
