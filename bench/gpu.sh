#!/usr/bin/env bash
# Everything that only a card can say, in one call of under ten minutes: results as JSON in $OUT.
#
#     OUT=results bash bench/gpu.sh              # every stage that the time allows, riskiest first
#     OUT=results bash bench/gpu.sh --rehearse   # the same on a CPU with tiny shapes
#
# Needs this project's GPU set on the Python path and no weights: models have real shapes and random
# weights. Where a stage fails, its log is in $OUT and the next one runs.
set -u
cd "$(dirname "$0")/.."
export OUT="${OUT:-bench/results/gpu}" PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0
mkdir -p "$OUT"
exec "${PYTHON:-python}" bench/gpu.py "$@"
