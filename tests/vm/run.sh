#!/usr/bin/env bash
# The ring of virtual machines: what needs a kernel with IPVS, which the machines that build and test mostly lack.
# tests/vm/run.sh [test|bench]. Builds here, runs in User-Mode Linux (uml.sh), which it installs by the system's package
# manager where it may. Where it cannot, it says so, and fails if VIPD_TESTS_REQUIRE=all.
set -euo pipefail
cd "$(dirname "$0")/../.."
what=${1:-test}
crate=dataplane/ipvs-rs

skip() {
    echo "SKIPPED: vm: $1"
    [ "${VIPD_TESTS_REQUIRE:-}" != all ]
    exit
}
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
install_packages() {
    as_root apt-get update -qq &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

packages=()
command -v linux.uml >/dev/null || packages+=(user-mode-linux)
command -v ipvsadm >/dev/null || packages+=(ipvsadm)
command -v modprobe >/dev/null || packages+=(kmod)
if [ ${#packages[@]} -gt 0 ]; then
    install_packages "${packages[@]}" 2>/dev/null || skip "no ${packages[*]}, and it cannot be installed"
fi

# executables KIND NAME…: what cargo built of these targets, by its own word.
executables() {
    cargo "$@" --no-run --message-format=json 2>/dev/null |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
}

# in_vm COMMAND…: runs it with what the tests look at in the environment.
in_vm() {
    tests/vm/uml.sh env "VIPD_TESTS_REQUIRE=all" CARGO_TERM_COLOR=never "$@"
}

case $what in
    test)
        cargo build --quiet --package ipvs-rs --examples
        mapfile -t tests < <(executables test --package ipvs-rs --test kernel --test kernel_crowd)
        [ ${#tests[@]} = 2 ] || { echo "the tests were not built"; exit 1; }
        examples=$(dirname "$(dirname "${tests[0]}")")/examples
        log=$(mktemp)
        trap 'rm -f "$log"' EXIT
        begin=$SECONDS
        # One kernel for all: it takes longer to boot than most of them to run.
        in_vm bash tests/vm/inside.sh "$crate" "$examples" "${tests[@]}" >"$log" 2>&1 || { cat "$log"; exit 1; }
        awk -v seconds=$((SECONDS - begin)) '
            /^test result: / { for (i = 1; i < NF; i++) { if ($(i + 1) == "passed;") passed += $i; if ($(i + 1) == "failed;") failed += $i } }
            /^vm kernel: / { kernel = $3 }
            END { printf "  vm: User-Mode Linux %s, %d s\n%d passed, %d failed\n", kernel, seconds, passed, failed }' "$log"
        ;;
    bench)
        mapfile -t bench < <(executables bench --package ipvs-rs --bench pipeline)
        shift
        in_vm bash -c 'uname -r; exec "$@"' bench "${bench[0]}" "$@"
        ;;
    *)
        echo "usage: tests/vm/run.sh [test|bench]" >&2
        exit 2
        ;;
esac
