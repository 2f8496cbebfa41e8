#!/usr/bin/env bash
# Write requirements.lock: every dependency, every platform, with hashes and without a registry's address.
set -euo pipefail
venv=${1:?usage: scripts/lock.sh VENV_DIR}
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
"$venv/bin/uv" pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
  --generate-hashes --no-emit-index-url --no-header --output-file requirements.lock --upgrade
