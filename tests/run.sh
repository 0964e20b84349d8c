#!/usr/bin/env bash
# Runs parts of the tests, and installs what they need into .venv-tests, or into $VENV.
#
#     bash tests/run.sh [--all] [--measure] PART...
#
# The parts are the cases of run_part below, and quick, which is two of them. They run side by side: every
# 20 seconds, a line says which ones run, and how many tests of each are done. The output of a part is
# printed when it ends, without the tests that have passed or were skipped, which pytest counts. The exit
# status is 1 if any part fails.
#
#     --all      also runs the tests that are marked nightly
#     --measure  measures the coverage of the code, which takes up to twice as long
# shellcheck disable=SC2317 # functions are called by their names, and by a trap
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$PWD/${VENV:-.venv-tests}
selected="and not nightly"
measured=
parts=()
for word in "$@"; do
    case $word in
    --all) selected= ;;
    --measure) measured=1 ;;
    quick) parts+=(quick-waits quick-rest) ;;
    *) parts+=("$word") ;;
    esac
done

logs=.pytest_cache/parts
mkdir -p "$logs"
export PYTHONUNBUFFERED=1

# Tests on Slurm mostly wait. Those with TensorFlow need the processors: with nice, tests of deadlines and
# of lost tasks run first.
at_once=3

tests() { # PART MARKERS OPTION...
    local part=$1 markers=$2 coverage=()
    shift 2
    [ -z "$measured" ] || coverage=(--cov --cov-report= --cov-fail-under=0)
    COVERAGE_FILE=$PWD/.pytest_cache/$part.coverage ${low:+nice} python -m pytest \
        -o "cache_dir=.pytest_cache/$part" -m "$markers $selected" "${verbose[@]}" "${coverage[@]}" "$@"
}

lint() {
    local wanted
    wanted=$(grep -o 'ruff==[0-9.]*' setup.cfg)
    if ! python tests/sizes.py >/dev/null; then
        echo "make sizes prints the sizes and their limits" >&2
        return 1
    fi
    ruff check . && ruff format --check . && lint-imports --no-cache --no-logo || return
    # Other versions of ruff format differently.
    if grep 'ruff[=<>~]' .pre-commit-config.yaml | grep -vF "\"$wanted\""; then
        echo "setup.cfg's test extra has $wanted" >&2
        return 1
    fi
}

report() { # NAME PART PART OPTION...: the coverage of the code by two parts
    local all=.pytest_cache/$1.coverage
    coverage combine --keep --quiet --data-file="$all" ".pytest_cache/$2.coverage" \
        ".pytest_cache/$3.coverage" && coverage report --data-file="$all" "${@:4}"
}

run_part() {
    case $1 in
    lint) lint ;;
    types) mypy ;;
    # These mostly wait.
    quick-waits) tests quick-waits "not slurm and not tensorflow" tests/coordination ;;
    quick-rest)
        tests quick-rest "not slurm and not tensorflow" --ignore=tests/coordination --ignore=tests/tf
        ;;
    slurm) tests slurm "slurm and not tensorflow" --slurm newest ;;
    tensorflow) low=1 tests tensorflow "tensorflow and not slurm" ;;
    training) low=1 tests training "tensorflow and slurm" --slurm newest ;;
    # What only root can do.
    root) tests root root --slurm newest ;;
    # The tests that depend on the version of Slurm, mainly those of layouts.
    oldest) tests oldest "slurm and not tensorflow and not newest" --slurm oldest ;;
    older) tests older "slurm and not tensorflow and not newest" --slurm older ;;
    oldest-training) low=1 tests oldest-training "slurm and tensorflow and not newest" --slurm oldest ;;
    nox-*) nox --session "${1#nox-}" ;;
    *)
        echo "no part $1 of the tests" >&2
        return 2
        ;;
    esac
}

extras="test"
# Without TensorFlow, if no part needs it.
case " ${parts[*]} " in
*" types "* | *" slurm "* | *" tensorflow "* | *" training "* | *" root "* | *" old"*)
    extras=tensorflow,examples,test
    ;;
esac

install() { # a path to this folder: the default of setuptools doubles Python's start-up time
    "${PYTHON:-python3}" -m venv "$venv" &&
        "$venv/bin/python" -m pip install --disable-pip-version-check --no-compile \
            --config-settings editable_mode=compat -e ".[$extras]" &&
        touch "$venv/with-$extras"
}

declare -A running=()

stop() { # as the terminal would: pytest stops its clusters
    trap - INT TERM HUP
    for pid in "${running[@]}"; do kill -INT -- "-$pid" 2>/dev/null || true; done
    wait
    exit 130
}

start() { # NAME COMMAND...: in a process group of its own
    local name=$1
    shift
    rm -f "$logs/$name.status"
    {
        "$@" && status=0 || status=$?
        echo "$status" >"$logs/$name.status"
    } >"$logs/$name.log" 2>&1 &
    running[$name]=$!
}

passed='(PASSED|SKIPPED.*) +\[ *[0-9]+/[0-9]+\]$'

end() { # NAME: prints the output if the command has ended
    local alive='' status
    if kill -0 "${running[$1]}" 2>/dev/null; then alive=1; fi # asked first: the status is written before
    if [ ! -s "$logs/$1.status" ]; then
        [ -z "$alive" ] || return 0
        echo "137, it was killed" >"$logs/$1.status"
    fi
    unset "running[$1]"
    status=$(<"$logs/$1.status")
    printf '\n== %s: exit status %s\n' "$1" "$status"
    case $1-$status in
    packages-0) tail -n 1 "$logs/packages.log" | cut -c 1-100 ;;
    *) grep -vE "$passed" "$logs/$1.log" || true ;;
    esac
    [ "$status" = 0 ] || failed+=("$1")
}

tests_done() { # NAME: of a running part, such as " [12/60]"
    grep -oE ' \[ *[0-9]+/[0-9]+\]$' "$logs/$1.log" | tail -n 1 || true
}

say() { # how far the running commands are
    local name line=
    for name in "${!running[@]}"; do
        line+=", $name$(tests_done "$name")"
    done
    printf '%d:%02d  %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "${line#, }"
}

finish() { # MOST: waits until at most this many commands run
    while [ ${#running[@]} -gt "$1" ]; do
        sleep 1
        for name in "${!running[@]}"; do end "$name"; done
        if [ $((SECONDS - said)) -ge 20 ] && [ ${#running[@]} -gt 0 ]; then
            say
            said=$SECONDS
        fi
    done
}

main() {
    set -m
    trap stop INT TERM HUP
    failed=()
    said=-20
    verbose=(--verbose -o console_output_style=count)
    if [ ! "$venv/with-$extras" -nt setup.cfg ]; then
        echo "Installing what the tests need into $venv"
        start packages install
        finish 0
        [ ${#failed[@]} = 0 ] || exit 1
    fi
    PATH=$venv/bin:$PATH

    if [ ${#parts[@]} = 1 ]; then
        verbose=()
        trap - INT TERM HUP
        set +m
        run_part "${parts[0]}" || exit
    else
        for part in "${parts[@]}"; do
            finish $((at_once - 1))
            start "$part" run_part "$part"
            say
        done
        finish 0
    fi
    if [ -n "$measured" ]; then
        case " ${parts[*]} " in
        *" quick-rest "*)
            report quick quick-waits quick-rest --omit='*/slurm_resolver/tf/*' || failed+=("coverage")
            ;;
        esac
        case " ${parts[*]} " in
        *" tensorflow "*)
            report tf tensorflow training --include='*/slurm_resolver/tf/*' --fail-under=90 ||
                failed+=("coverage of tf")
            ;;
        esac
    fi
    [ ${#failed[@]} = 0 ] || {
        printf '\nfailed: %s\n' "${failed[*]}" >&2
        exit 1
    }
}

main; exit # in one line: bash reads no more of this file, which may change while the tests run
