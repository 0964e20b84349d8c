#!/bin/bash
# Imitates `ssh HOST COMMAND`: runs it on a node of the test cluster, without this environment.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
for name in $(grep --files-with-matches '^slurmd$' /proc/[0-9]*/comm); do
    pid=${name//[!0-9]/}
    if [ "$(nsenter --target="$pid" --uts hostname 2>/dev/null)" = "$host" ]; then
        exec nsenter --target="$pid" --net --uts --mount \
            env --ignore-environment PATH="$PATH" HOME="$HOME" bash -c "$*"
    fi
done
echo "slurm_ssh.sh: no node $host" >&2
exit 255
