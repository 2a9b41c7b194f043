#!/usr/bin/env bash
# Everything that only a GPU can say, in stages: first `make train`'s own job, then the riskiest.
#
#     OUT=results bash bench/gpu.sh               # ten minutes at most; again for what is left
#     OUT=results bash bench/gpu.sh --minutes 60  # where a call may take longer, and for GSM8K
#     bash bench/gpu.sh --list                    # what is known so far
#     OUT=results bash bench/gpu.sh --only "on 16 GB" --redo "on 16 GB"   # one again
#     python bench/gpu.py --row results/gpu.json  # the row of a table, or what must not be sent
#
# Needs one NVIDIA GPU of 6 GB or more and this project's GPU set; a stage that needs more is skipped
# and says so. Needs no network and no weights but for GSM8K: models have real shapes and random
# weights, made on the GPU. Their 14 GB lie in /tmp/unslothrl-gpu (UNSLOTHRL_GPU_STATE), so that a
# later call goes on. $OUT gets gpu.json, which has nothing that tells whose machine it was, and for
# yourself gpu.log and failures.tar: the command, output, run folder, Ray's logs, nvidia-smi and
# versions of every stage that failed.
#
# Every stage with tiny shapes on a CPU, with the GPU set's own versions (`make gpu-set`):
#
#     PYTHON=.venv-gpu-set/bin/python PYTHONPATH=.venv-gpu-set/cpu-vllm VLLM_PLUGINS= \
#         bash bench/gpu.sh --rehearse --minutes 60
set -u
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python}" bench/gpu.py "$@"
