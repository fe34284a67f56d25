#!/usr/bin/env bash
# What runs inside the virtual machine: inside.sh CRATE EXAMPLES TEST…. Prints a line like a test harness's for what is
# checked here: the examples of ipvs-rs, as somebody would try them.
set -euo pipefail
crate=$1 examples=$2
shift 2
echo "vm kernel: $(uname -r)"

check() {
    local name=$1
    shift
    if "$@"; then
        echo "test $name ... ok"
        passed=$((passed + 1))
    else
        echo "test $name ... FAILED"
        failed=$((failed + 1))
    fi
}
passed=0 failed=0

# says TEXT COMMAND…: it succeeds, and TEXT is in what it prints.
says() {
    local said
    said=$("${@:2}" 2>&1) && grep -qF "$1" <<<"$said" || { echo "$said" && false; }
}
restores() { "$examples/save_restore" restore <"$crate/tests/captures/table.txt"; }
saves() { diff <("$examples/save_restore" save) "$crate/tests/captures/table.txt"; }
changes_nothing() { says '0 changes' restores; }
peer_agrees() { [ "$(ipvsadm -Sn | wc -l)" = "$(wc -l <"$crate/tests/captures/table.txt")" ]; }

check readme_example_does_what_it_says says \
    'delete destination 10.1.2.2:8080 of tcp 10.96.0.10:80: the service has no such destination (ENOENT)' "$examples/first"
check a_saved_table_is_restored restores
check what_is_restored_is_saved saves
check ipvsadm_sees_as_many_lines peer_agrees
check restoring_it_again_changes_nothing changes_nothing
check listed says 'udp [fd96::10]:53 sh persistent 300 /64' "$examples/list" --stats
echo "test result: examples. $passed passed; $failed failed;"

ok=$failed
ipvsadm -C
for test in "$@"; do
    "$test" --show-output || ok=1
done
exit "$ok"
