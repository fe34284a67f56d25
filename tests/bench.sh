#!/usr/bin/env bash
# Runs the benches and writes what they print into docs/performance.md, each between its own marks.
# tests/bench.sh [PART…]; parts: control store proxy. No figure is ever asserted: machines differ, and so do their hours.
set -euo pipefail
cd "$(dirname "$0")/.."
export PROTOC=/nonexistent
page=docs/performance.md

# put PART: replaces what stands between the marks of PART by standard input, in a fence, with the place and time.
put() {
    local part=$1 text
    text=$(mktemp)
    {
        printf '%s, kernel %s, %s cores, load %s\n\n' "$(date -u +%F)" "$(uname -r)" "$(nproc)" "$(cut -d' ' -f1 /proc/loadavg)"
        cat
    } >"$text"
    awk -v part="$part" -v text="$text" '
        $0 == "<!-- /bench " part " -->" { skip = 0; print "```" }
        !skip { print }
        $0 == "<!-- bench " part " -->" { skip = 1; print "```"; while ((getline line < text) > 0) print line }
    ' "$page" >"$page.new"
    mv "$page.new" "$page"
    rm -f "$text"
}

for part in "${@:-control store proxy}"; do
    for one in $part; do
        case $one in
            control | store) package=vipd ;;
            proxy) package=vipd-userspace ;;
            *) echo "no such part: $one" >&2; exit 2 ;;
        esac
        echo "bench $one"
        cargo bench --quiet --package "$package" --bench "$one" 2>&1 | grep -v ' \[alert\] ' | tee /dev/stderr | put "$one"
    done
done
