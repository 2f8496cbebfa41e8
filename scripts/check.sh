#!/usr/bin/env bash
# Lint, and run tests meanwhile: mypy takes half a minute of one core while its cache is cold.
# Usage: scripts/check.sh BIN_DIR COMMAND... (the tests). Fails if either fails; prints what each took.
set -uo pipefail
bin=${1:?usage: scripts/check.sh BIN_DIR COMMAND...}
shift
TIMEFORMAT='%R s (CPU: %U s, and %S s in the kernel)'
folder=$(mktemp -d) && trap 'rm -rf "$folder"' EXIT

"$bin/ruff" check . && "$bin/ruff" format --check . || exit 1 # within a second: tests can wait
(
  { time "$bin/mypy" >"$folder/types" 2>&1; } 2>"$folder/lint_took"
) &
mypy=$!
# A minute of compiling after a change of kernels: done once here, not by every worker and service.
"$bin/python" -c "
from roamcast.matching import FilterSet
from roamcast.matching.live import questions
FilterSet().warm_up(batches=True)
questions.warm_up()" || exit 1
# In an empty clone every worker would rewrite and compile all tests: done once here, too.
[ -d tests/__pycache__ ] || "$bin/python" -m pytest --collect-only -q >"$folder/tests" || exit 1
{ time "$@" 2>&3; } 3>&2 2>"$folder/tests_took"
tests=$?
wait "$mypy"
wrong=$?
cat "$folder/types"
echo "check: mypy took $(cat "$folder/lint_took"), pytest $(cat "$folder/tests_took")"
if [ "$tests" -ne 0 ] || [ "$wrong" -ne 0 ]; then
  echo "check: pytest ended with $tests, mypy with $wrong" >&2
  exit 1
fi
