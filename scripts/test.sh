#!/usr/bin/env bash
# Everything that has to hold: lint, types, fast tests, then the slow ones (the real model, the emulator).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
export OMP_WAIT_POLICY=PASSIVE HF_HUB_OFFLINE=1
.venv/bin/ruff check .
.venv/bin/mypy
.venv/bin/python -m pytest -q -n 2 --dist loadfile -m "not slow and not nightly"
.venv/bin/python -m pytest -q -n 2 --dist loadfile -m "slow and not nightly"
