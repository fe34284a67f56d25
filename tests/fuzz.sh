#!/usr/bin/env bash
# Runs every fuzz target for so many seconds: `tests/fuzz.sh 60`. Needs cargo-fuzz and a nightly compiler; without one it
# says so, and fails where nothing may be skipped.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-60}

skip() {
    echo "SKIPPED: fuzz: $1"
    [ "${VIPD_TESTS_REQUIRE:-}" != all ]
    exit
}
command -v cargo-fuzz >/dev/null || skip "cargo-fuzz is not installed (cargo install cargo-fuzz)"
cargo +nightly --version >/dev/null 2>&1 || skip "no nightly compiler (rustup toolchain install nightly)"

targets=(request netlink ipvs config store)
cargo +nightly fuzz build --fuzz-dir fuzz
for target in "${targets[@]}"; do
    printf '%-8s ' "$target"
    mkdir -p "fuzz/corpus/$target" "fuzz/seeds/$target"
    if ! cargo +nightly fuzz run --fuzz-dir fuzz "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 >"fuzz/$target.log" 2>&1; then
        echo "FAILED: fuzz/$target.log, input under fuzz/artifacts/$target"
        tail -40 "fuzz/$target.log"
        exit 1
    fi
    awk '/number_of_executed_units/ {n=$2} /average_exec_per_sec/ {r=$2} END {print n " runs, " r " a second, none failed"}' \
        "fuzz/$target.log"
done
