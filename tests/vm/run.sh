#!/usr/bin/env bash
# The ring of virtual machines: what needs a kernel with IPVS, which the machines that build and test mostly lack.
# tests/vm/run.sh test [uml] [qemu] | bench [SERVICES DESTINATIONS]. Builds here and runs there: uml.sh is a kernel as a
# process, quick; qemu.sh a stock and newer kernel with two processors, slow. What they take is installed by the system's
# package manager where it may; where a machine cannot be had it says so, and fails if VIPD_TESTS_REQUIRE=all.
set -euo pipefail
cd "$(dirname "$0")/../.."
crate=dataplane/ipvs-rs

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
skip() {
    echo "SKIPPED: vm $1: $2"
    [ "${VIPD_TESTS_REQUIRE:-}" != all ] || exit 1
}

# provide PROGRAM PACKAGE…: installs the packages of the programs that are missing.
provide() {
    local packages=()
    while [ $# -gt 0 ]; do
        command -v "$1" >/dev/null || packages+=("$2")
        shift 2
    done
    [ ${#packages[@]} -gt 0 ] || return 0
    as_root apt-get update -qq &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
} >/dev/null 2>&1

# have MACHINE: whether it can be started here, after all that can be done about it.
have() {
    case $1 in
        uml) provide linux.uml user-mode-linux ipvsadm ipvsadm modprobe kmod && command -v linux.uml >/dev/null ;;
        qemu)
            provide qemu-system-x86_64 qemu-system-x86 cpio cpio xz xz-utils ipvsadm ipvsadm modprobe kmod &&
                command -v qemu-system-x86_64 >/dev/null
            ;;
        *)
            echo "no such machine: $1" >&2
            exit 2
            ;;
    esac
}

# executables ARGUMENT…: what cargo builds for these, by its own word.
executables() {
    cargo "$@" --no-run --message-format=json 2>/dev/null | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
}

# Adds up what the harnesses printed; the last line is for whoever counts tests.
tally='
    /^vm kernel: / {kernel = $3}
    /^test result: / {
        for (i = 1; i < NF; i++) {
            if ($(i + 1) == "passed;") passed += $i
            if ($(i + 1) == "failed;") failed += $i
        }
    }
    END {
        printf "  vm %s, kernel %s: %d s\n%d passed, %d failed\n", machine, kernel, seconds, passed, failed
        exit !passed || failed
    }'

test_in() {
    local machine=$1 log=$2 begin=$SECONDS status=0
    # One boot for all: it takes longer than most of them.
    "tests/vm/$machine.sh" env VIPD_TESTS_REQUIRE=all CARGO_TERM_COLOR=never \
        bash tests/vm/inside.sh "$crate" "$examples" "${tests[@]}" >"$log" 2>&1 || status=$?
    if [ $status = 77 ]; then
        skip "$machine" "$(tail -1 "$log")"
    elif ! awk -v machine="$machine" -v seconds=$((SECONDS - begin)) "$tally" "$log" || [ $status != 0 ]; then
        cat "$log"
        exit 1
    fi
}

what=${1:-test}
[ $# = 0 ] || shift
case $what in
    test)
        [ $# -gt 0 ] || set -- uml qemu
        cargo build --quiet --package ipvs-rs --examples
        mapfile -t tests < <(executables test --package ipvs-rs --test kernel --test kernel_crowd)
        [ ${#tests[@]} = 2 ] || { echo "the tests were not built"; exit 1; }
        examples=$(dirname "$(dirname "${tests[0]}")")/examples
        log=$(mktemp)
        trap 'rm -f "$log"' EXIT
        for machine in "$@"; do
            if have "$machine"; then test_in "$machine" "$log"; else skip "$machine" "it is not here and cannot be installed"; fi
        done
        ;;
    bench)
        have uml || { skip uml "it is not here and cannot be installed"; exit; }
        mapfile -t bench < <(executables bench --package ipvs-rs --bench pipeline)
        tests/vm/uml.sh bash -c 'uname -r; exec "$@"' bench "${bench[0]}" "$@"
        ;;
    *)
        echo "usage: tests/vm/run.sh test [uml] [qemu] | bench [SERVICES DESTINATIONS]" >&2
        exit 2
        ;;
esac
