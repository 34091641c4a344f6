#!/usr/bin/env bash
# Evaluate with several processes on this machine, or with one such command on each of several.
# tools/dist_test.sh CONFIG CHECKPOINT GPUS [ARGUMENTS OF test.py]
# Without GPUs, GPUS is the number of processes on the CPU.
set -euo pipefail
if [ $# -lt 3 ]; then
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
fi

CONFIG=$1
CHECKPOINT=$2
GPUS=$3

exec python -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="${PORT:-29500}" \
    --nproc_per_node="$GPUS" \
    "$(dirname "$0")/test.py" "$CONFIG" "$CHECKPOINT" --launcher pytorch "${@:4}"
