#!/usr/bin/env bash
# The main job from nothing: set up, build SmolLM2-135M for a Snapdragon phone, ask it something.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
.venv/bin/edgeforge build recipes/smollm2-135m-qnn.yaml
.venv/bin/edgeforge run out/smollm2-135m-qnn "Why is the sky blue?"
