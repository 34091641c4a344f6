#!/usr/bin/env bash
# Train with several processes on this machine, or with one such command on each of several.
# tools/dist_train.sh CONFIG GPUS [ARGUMENTS OF train.py]
# Without GPUs, GPUS is the number of processes on the CPU.
set -euo pipefail
if [ $# -lt 2 ]; then
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
fi

CONFIG=$1
GPUS=$2

exec python -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" \
    --master_port="${PORT:-29500}" \
    --nproc_per_node="$GPUS" \
    "$(dirname "$0")/train.py" "$CONFIG" --launcher pytorch "${@:3}"
