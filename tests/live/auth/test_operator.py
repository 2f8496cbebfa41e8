"""The operator's token in the address file: neither a rotation nor a week ends it."""

import json
from pathlib import Path

from roamcast.live.auth.admission import TokenKeys
from roamcast.live.auth.operator import OPERATOR_LIFETIME_S, OperatorToken

SECOND = 1_000_000
HALF_US = OPERATOR_LIFETIME_S * SECOND // 2
NOW = 1_800_000_000 * SECOND


def written(path: Path) -> str:
    return str(json.loads(path.read_text(encoding="utf-8"))["token"])


def test_the_token_is_renewed_at_half_its_life_and_not_before(tmp_path: Path) -> None:
    keys, path = TokenKeys.open(tmp_path), tmp_path / "roamcast.json"
    operator = OperatorToken(keys, path, "http://127.0.0.1:80")
    first = operator.renew(NOW)
    operator.check(NOW + HALF_US - 1)
    assert written(path) == first
    operator.check(NOW + HALF_US)
    assert written(path) != first
    for quarter in range(3, 60):
        now = NOW + quarter * OPERATOR_LIFETIME_S * SECOND // 4
        operator.check(now)
        assert keys.check(written(path), now).subject == "operator"


def test_the_token_outlives_rotations_and_its_own_revocation(tmp_path: Path) -> None:
    keys, path = TokenKeys.open(tmp_path), tmp_path / "roamcast.json"
    operator = OperatorToken(keys, path, "http://127.0.0.1:80")
    operator.renew(NOW)
    command = TokenKeys.open(tmp_path)  # as `roamcast token` runs beside the service
    for change in (
        lambda: command.rotate(NOW),
        lambda: command.rotate(NOW, at_once=True),
        lambda: command.revoke(written(path), NOW),
    ):
        change()
        operator.check(NOW)
        assert "admin" in keys.check(written(path), NOW).scopes
