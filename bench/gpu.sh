#!/usr/bin/env bash
# Everything that only a card can say, in stages ordered by worth, over as many calls as it takes.
#
#     OUT=results bash bench/gpu.sh               # 9.5 minutes; again for the stages that are left
#     OUT=results bash bench/gpu.sh --minutes 25  # where a call may take longer
#     bash bench/gpu.sh --list                    # what is known so far
#     OUT=results bash bench/gpu.sh --only "on 16 GB" --redo "on 16 GB"   # one again
#     bash bench/gpu.sh --rehearse --minutes 60   # every stage with tiny shapes, on a CPU
#
# Needs one card and this project's GPU set on the Python path; no network and no weights: models
# have real shapes and random weights, made on the card. State lies in /tmp/unslothrl-gpu
# (UNSLOTHRL_GPU_STATE), so a later call on the same machine goes on. $OUT gets four files of
# together a few MB: gpu.json, gpu.log, and failures.tar with the command, output, run folder, Ray's
# logs, nvidia-smi and versions of every stage that failed.
#
# Where a call may take ten minutes, with the set unpacked in /tmp/site:
#
#     PYTHONPATH=/tmp/site bash bench/gpu.sh --only whole          # first: under two minutes
#     PYTHONPATH=/tmp/site bash bench/gpu.sh --minutes 9.5         # then, twice or three times
set -u
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export HF_HUB_OFFLINE=1 VLLM_USE_FLASHINFER_SAMPLER=0
exec "${PYTHON:-python}" bench/gpu.py "$@"
