#!/bin/bash
# Usage: task.sh FOLDER COMMAND [ARGUMENT …]
# Runs COMMAND as one task. Rank 0 is the parameter server, which never ends by itself: this script
# ends it when all workers have ended. Each worker creates a file in FOLDER, which the nodes share.
set -euo pipefail
folder=$1
shift

if [ "$SLURM_PROCID" != 0 ]; then
    "$@"  # a failure ends this script here, with that status
    touch "$folder/worker-$SLURM_PROCID"
    exit
fi

"$@" &
while kill -0 $! 2>/dev/null; do
    ended=("$folder"/worker-*)
    if [ -e "${ended[0]}" ] && [ ${#ended[@]} = $((SLURM_STEP_NUM_TASKS - 1)) ]; then
        kill $!
        exit
    fi
    sleep 1
done
wait $!  # it ended before the workers, which is a failure
exit 1
