# Starts the hosts of a Slurm for tests.
#
# Runs as `bash slurm_namespaces.sh login NODE...`, and for each node as `... node NUMBER NAME`;
# SLURMD is the command of a node's daemon. DYNAMIC contains the nodes that are not in slurm.conf.
set -eu
cd "${0%/*}"
export SLURM_CONF=$PWD/slurm.conf

daemon() {  # notes a daemon that ends, so that start() stops waiting
    name=$1; shift
    "$@" </dev/null >>"log/$name.out" 2>&1 || echo "$name: exit status $?" >>run/ended
}

if [ "$1" = node ]; then
    hostname "$3"
    # A node makes its own cable and hands the far end to process 1, on the login's network.
    ip link set lo up
    ip link add eth0 type veth peer name "port$2" netns 1
    ip addr add "10.77.0.$2/24" dev eth0
    ip link set eth0 up
    nsenter --target 1 --net ip link set "port$2" master bridge0 up
    case " $DYNAMIC " in *" $3 "*) SLURMD="$SLURMD -Z --conf NodeAddr=10.77.0.$2" ;; esac
    daemon "slurmd-$3" $SLURMD -D -f "$SLURM_CONF" -N "$3"
    exec sleep infinity  # keeps the node's namespaces for run_on()
fi
hostname login
mount --bind hosts /etc/hosts
mount -t tmpfs run /run  # where the daemons of auth/slurm put their sockets
# Newer daemons query DNS, and wait for an answer that never comes here.
[ ! -e /etc/resolv.conf ] || mount --bind /dev/null /etc/resolv.conf
ip link set lo up
# Without an address of its own, a bridge changes its address, which breaks connections.
ip link add bridge0 address 02:00:00:00:00:fe type bridge
ip addr add 10.77.0.254/24 dev bridge0
ip link set bridge0 up
shift
echo ready
daemon slurmctld slurmctld -D -c -f "$SLURM_CONF" &
(   # Daemons retry after whole seconds, so wait for the controller's port, 6817, before they start.
    until grep -q ':1AA1 .* 0A ' /proc/net/tcp; do sleep 0.01; done
    touch run/listening
    number=0
    for name; do
        number=$((number + 1))
        daemon "node-$name" unshare --net --uts --mount bash "$0" node $number "$name" &
        # Dynamic nodes enter the node table in the order in which they register.
        case " $DYNAMIC " in *" $name "*)
            until scontrol show node "$name" >>log/dynamic.out 2>&1; do sleep 0.02; done ;;
        esac
    done
    wait
) &
read -r _ || true
