#!/usr/bin/env bash
# Runs the benches and writes what they print into docs/performance.md, each between its own marks.
# tests/bench.sh [PART…]; parts: control store proxy engines ipvs (VIPD_BENCH_SIZES=all for every size of those). No figure is ever asserted: machines differ, and so do their hours.
set -euo pipefail
cd "$(dirname "$0")/.."
export PROTOC=/nonexistent
page=docs/performance.md

# put PART FENCE: replaces what stands between the marks of PART by standard input, in a fence, with the place and time.
put() {
    local part=$1 fence=$2 text
    text=$(mktemp)
    {
        printf '%s, kernel %s, %s cores, load %s\n\n' "$(date -u +%F)" "$(uname -r)" "$(nproc)" "$(cut -d' ' -f1 /proc/loadavg)"
        cat
    } >"$text"
    awk -v part="$part" -v fence="$fence" -v text="$text" '
        $0 == "<!-- /bench " part " -->" { skip = 0; print fence }
        !skip { print }
        $0 == "<!-- bench " part " -->" { skip = 1; print fence; while ((getline line < text) > 0) print line }
    ' "$page" >"$page.new"
    mv "$page.new" "$page"
    rm -f "$text"
}

for part in "${@:-control store proxy engines ipvs}"; do
    for one in $part; do
        fence='```'
        case $one in
            engines)
                # The daemon as it is shipped, and Markdown that needs no fence.
                cargo build --quiet --release --package vipd --bin vipd
                package=vipd-tests fence=
                ;;
            control | store) package=vipd ;;
            proxy) package=vipd-userspace ;;
            ipvs)
                # In a virtual machine, whose own kernel is in the first line.
                echo "bench $one"
                tests/vm/run.sh bench | tee /dev/stderr | put "$one" "$fence"
                continue
                ;;
            *) echo "no such part: $one" >&2; exit 2 ;;
        esac
        echo "bench $one"
        # A peer's alerts are no figures, nor is what says how far a long bench has come.
        cargo bench --quiet --package "$package" --bench "$one" | grep -v ' \[alert\] ' | tee /dev/stderr | put "$one" "$fence"
    done
done
