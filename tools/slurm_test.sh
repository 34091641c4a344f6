#!/usr/bin/env bash
# Evaluate under Slurm.
# tools/slurm_test.sh PARTITION JOB_NAME CONFIG CHECKPOINT [ARGUMENTS OF test.py]
# Environment: GPUS (8), GPUS_PER_NODE (8), CPUS_PER_TASK (5), SRUN_ARGS
set -euo pipefail
if [ $# -lt 4 ]; then
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
fi

PARTITION=$1
JOB_NAME=$2
CONFIG=$3
CHECKPOINT=$4
GPUS=${GPUS:-8}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}

# shellcheck disable=SC2086 -- SRUN_ARGS holds several arguments
exec srun -p "$PARTITION" \
    --job-name="$JOB_NAME" \
    --gres="gpu:$GPUS_PER_NODE" \
    --ntasks="$GPUS" \
    --ntasks-per-node="$GPUS_PER_NODE" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} \
    python -u "$(dirname "$0")/test.py" "$CONFIG" "$CHECKPOINT" --launcher slurm "${@:5}"
