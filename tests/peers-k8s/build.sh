#!/usr/bin/env bash
# build.sh [PROGRAM…]: builds etcd, kube-apiserver, kube-proxy and the loader of this folder, or those named, into
# ~/.cache/vipd-peers/k8s. What is there stays. The first time takes some ten minutes of processor time; nothing of it
# becomes part of vipd.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
cache="${VIPD_PEERS:-$HOME/.cache/vipd-peers}/k8s"
mkdir -p "$cache/bin"
# Built from a copy: the complete go.mod and go.sum of Kubernetes are long and say nothing about us.
rm -rf "$cache/src"
cp -r "$here" "$cache/src"
cd "$cache/src"
export GOFLAGS="-mod=mod -buildvcs=false ${GOFLAGS:-}" CGO_ENABLED=0

flags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=v1.37.2 -X $package.gitMajor=1 -X $package.gitMinor=37"
done
build() {
    [ -x "$cache/bin/$1" ] && [ "$1" != load ] && return
    echo "building $1"
    nice -n 19 go build -trimpath -ldflags "$flags" -o "$cache/bin/$1" "$2"
}
for program in "${@:-etcd kube-apiserver kube-proxy load}"; do
    for one in $program; do
        case $one in
            etcd) build etcd go.etcd.io/etcd/server/v3 ;;
            load) build load ./load ;;
            *) build "$one" "k8s.io/kubernetes/cmd/$one" ;;
        esac
    done
done
