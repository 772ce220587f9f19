#!/usr/bin/env bash
# Makes .venv with the pinned packages, all extras included, and fetches the demo model. Does nothing the second time.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || { echo "error: $python not found; install Python 3.11 with venv, or set PYTHON" >&2; exit 1; }

wanted=$(cat constraints.txt pyproject.toml runtimes/pyproject.toml | sha256sum)
if [ "$(cat .venv/.edgeforge 2>/dev/null || true)" != "$wanted" ]; then
  "$python" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
    -e ./runtimes -e ".[qnn,tensorrt,coreml,coreai,dev]"
  .venv/bin/python -m pip check
  echo "$wanted" > .venv/.edgeforge
fi
.venv/bin/python scripts/fetch_models.py smollm2-135m-instruct
