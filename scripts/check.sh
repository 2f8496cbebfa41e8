#!/usr/bin/env bash
# Lint, and run tests meanwhile: mypy takes half a minute of one core while its cache is cold.
# Usage: scripts/check.sh BIN_DIR COMMAND... (the tests). Fails if either fails.
set -uo pipefail
bin=${1:?usage: scripts/check.sh BIN_DIR COMMAND...}
shift
"$bin/ruff" check . && "$bin/ruff" format --check . || exit 1 # within a second: tests can wait
types=$(mktemp) && trap 'rm -f "$types"' EXIT
"$bin/mypy" >"$types" 2>&1 &
mypy=$!
# A minute of compiling after a change of kernels: done once here, not by every worker and service.
"$bin/python" -c "
from roamcast.matching import FilterSet
from roamcast.matching.live import questions
FilterSet().warm_up(batches=True)
questions.warm_up()" || exit 1
"$@"
tests=$?
wait "$mypy"
wrong=$?
cat "$types"
if [ "$tests" -ne 0 ] || [ "$wrong" -ne 0 ]; then
  echo "check: pytest ended with $tests, mypy with $wrong" >&2
  exit 1
fi
