#!/usr/bin/env bash
# What CI runs, then what is too long for it; rewrites tests/minutes.tsv, the ledger of what each test file costs.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
export OMP_WAIT_POLICY=PASSIVE HF_HUB_OFFLINE=1
.venv/bin/python -m pytest -q -n 2 --dist loadfile -m "not slow and not nightly" --minutes fast
.venv/bin/python -m pytest -q -n 2 --dist loadfile -m "slow and not nightly" --minutes slow
.venv/bin/python -m pytest -q -m nightly --minutes nightly
.venv/bin/python scripts/fuzz --cases 10000
.venv/bin/python scripts/bench/build.py recipes/smollm2-135m-qnn.yaml
