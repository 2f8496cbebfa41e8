#!/usr/bin/env bash
# Set a machine up: a virtual environment with locked dependencies, and Java for Spark.
# Usage: scripts/setup.sh VENV_DIR. Safe to run again.
set -euo pipefail
venv=${1:?usage: scripts/setup.sh VENV_DIR}

say() { printf 'setup: %s\n' "$*" >&2; }
can_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
apt_install() {
  say "installing $* with apt-get"
  apt-get -qq update >&2 && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends "$@" >&2
}

find_python() {
  local name
  for name in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    [ -n "$name" ] && command -v "$name" >/dev/null || continue
    "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$name"; return; }
  done
  say "Python 3.11 or newer is needed: install it, or set PYTHON to its path"; exit 1
}

python=$(find_python)
if ! [ -x "$venv/bin/python" ]; then
  say "creating $venv with $("$python" --version)"
  if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    can_apt && apt_install python3-venv || { say "install python3-venv first"; exit 1; }
  fi
  "$python" -m venv "$venv"
fi
# --no-deps: the lock is whole; with it, pip looks for newer releases of what has extras (coverage[toml]).
say "installing locked dependencies (about a minute the first time)"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements.lock
"$venv/bin/python" -m compileall -q -j 0 "$venv/lib" >/dev/null 2>&1 || true # pip would use one core; templates are no Python
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .

java_major() { # 17 out of 'openjdk version "17.0.15" …'; 8 out of "1.8.0"
  "$1" -version 2>&1 | sed -nE 's/.* version "(1\.)?([0-9]+).*/\2/p' | head -n 1
}
java=${JAVA_HOME:+$JAVA_HOME/bin/java}
java=${java:-$(command -v java || true)}
if [ -z "$java" ] || [ "$(java_major "$java" || echo 0)" -lt 17 ] 2>/dev/null; then
  if can_apt; then apt_install openjdk-17-jre-headless
  else say "Spark needs Java 17 or newer: install a JRE (Debian: openjdk-17-jre-headless); the rest works without"; fi
fi
say "compiling the kernels, and letting Java keep Spark's classes"
"$venv/bin/python" -c 'from roamcast.pipeline.spark.java_classes import make; make()' >/dev/null 2>&1 &
classes=$!
"$venv/bin/python" scripts/kernels.py
wait "$classes" || say "Java kept none: Spark starts as slowly as it does elsewhere"
say "ready: $venv/bin/roamcast"
