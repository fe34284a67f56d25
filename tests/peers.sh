#!/usr/bin/env bash
# Brings what the outer rings of the tests need and a machine may lack: kernel tools by the system's packages, real peers
# (grpcurl, Python's grpcio) by their own package managers into a cache. What is there already is left alone.
set -euo pipefail
cache="$HOME/.cache/vipd-peers"
grpcurl_version=1.9.3

missing() { ! command -v "$1" >/dev/null 2>&1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

packages=()
missing nft && packages+=(nftables)
missing ip && packages+=(iproute2)
missing iptables && packages+=(iptables)
missing make && packages+=(make)
missing cc && packages+=(gcc libc6-dev)
missing go && packages+=(golang-go)
missing openssl && packages+=(openssl)
missing python3 && packages+=(python3 python3-venv)
if [ ${#packages[@]} -gt 0 ]; then
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

mkdir -p "$cache/bin"
if [ ! -x "$cache/bin/grpcurl" ]; then
    GOBIN="$cache/bin" go install "github.com/fullstorydev/grpcurl/cmd/grpcurl@v$grpcurl_version"
fi
if ! "$cache/python/bin/python" -c 'import grpc_tools, grpc_status' 2>/dev/null; then
    python3 -m venv "$cache/python"
    "$cache/python/bin/pip" install --quiet grpcio==1.* grpcio-tools==1.* grpcio-status==1.*
fi
"$(dirname "$0")/peers-k8s/build.sh" etcd kube-apiserver
if missing cargo-deny; then cargo install --quiet --locked cargo-deny@0.20.2; fi
if missing cargo-fuzz; then cargo install --quiet --locked cargo-fuzz@0.13.2; fi
