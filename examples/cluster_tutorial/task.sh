#!/bin/bash
# Usage: task.sh JOB INDEX WORKER_HOSTS FOLDER COMMAND [ARGUMENT …]
# Runs COMMAND as one task, and ends a parameter server, which never ends by itself, when all
# workers have. They tell by a file each in FOLDER, which the nodes must share.
set -euo pipefail
job=$1 index=$2 folder=$4
IFS=, read -ra workers <<<"$3"
shift 4

if [ "$job" != ps ]; then
    "$@"  # a failure ends this script here, with that status
    touch "$folder/$job-$index"
    exit
fi

"$@" &
while kill -0 $! 2>/dev/null; do
    ended=("$folder"/worker-*)
    if [ -e "${ended[0]}" ] && [ ${#ended[@]} = ${#workers[@]} ]; then
        kill $!
        exit
    fi
    sleep 1
done
wait $!  # it has ended before the workers, which is a failure
exit 1
