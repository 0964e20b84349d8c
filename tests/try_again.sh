#!/bin/sh
# Runs pytest, and where tests fail, those once more: PYTEST… of which both runs stay in the output.
# Beside three other parts on two cores a task may come later than any deadline of its test; a test
# that fails twice fails.
"$@" && exit 0
status=$?
[ "$status" = 1 ] || exit "$status" # 1: tests have failed; else pytest itself
echo "Once more what has failed:"
exec "$@" --last-failed --last-failed-no-failures none
