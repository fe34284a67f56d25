#!/usr/bin/env bash
# Runs one command as root in User-Mode Linux, a kernel that is an ordinary process: no KVM, no root needed on the host.
# The host's file system is there, read-only under a throw-away overlay; there is no network but what the command makes.
# tests/vm/uml.sh COMMAND…     UML_MEMORY=1024M   UML_SECONDS=300
# Its exit status is the command's; 77 if this machine cannot, 125 if the kernel died or the time was up.
set -euo pipefail
memory=${UML_MEMORY:-1024M} seconds=${UML_SECONDS:-300}

cannot() {
    echo "uml: $1" >&2
    exit 77
}
[ $# -gt 0 ] || { echo "usage: tests/vm/uml.sh COMMAND…" >&2; exit 2; }
command -v linux.uml >/dev/null || cannot "linux.uml is not installed (Debian: user-mode-linux)"
modules=$(find /usr/lib/uml/modules -mindepth 1 -maxdepth 1 2>/dev/null | sort -V | tail -1)
[ -n "$modules" ] || cannot "no modules under /usr/lib/uml/modules"

work=$(mktemp -d /tmp/uml.XXXXXX)
trap 'rm -rf "$work"' EXIT
# A backing file for the memory: a RAM disk where there is one.
[ -w /dev/shm ] && backing=/dev/shm || backing=$work

# First process: an overlay over the host's root becomes the root.
cat >"$work/init" <<INIT
#!/bin/bash
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
insmod $modules/kernel/fs/overlayfs/overlay.ko
mount -t tmpfs tmpfs /mnt
mkdir /mnt/host /mnt/upper /mnt/work /mnt/root
mount -t hostfs -o / hostfs /mnt/host
mount -t overlay -o lowerdir=/mnt/host,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
cd /mnt/root
mount -t proc proc proc
mount -t sysfs sys sys
mount -t devtmpfs dev dev 2>/dev/null
ln -s /proc/self/fd dev/fd
mount -t tmpfs run run
mkdir -p lib/modules
mount --bind usr/lib/uml/modules lib/modules
pivot_root . mnt && exec chroot . /bin/bash $work/command
INIT
# The command, and how it went: the kernel's own exit status says nothing.
cat >"$work/command" <<COMMAND
ip link set lo up
cd $(printf %q "$PWD")
( $(printf '%q ' "$@") ) </dev/null
echo "vm-exit-status:\$?"
echo o >/proc/sysrq-trigger
sleep 10
COMMAND
chmod +x "$work/init"

timeout --foreground --kill-after=5 "$seconds" env TMPDIR="$backing" linux.uml \
    mem="$memory" umid="v$$" uml_dir="$work" rootfstype=hostfs rootflags=/ ro init="$work/init" \
    con0=null,fd:1 con=null ssl=null quiet loglevel=3 TERM=dumb </dev/null 2>"$work/kernel" \
    | tr -d '\r' \
    | awk '/^vm-exit-status:/ {split($0, a, ":"); code = a[2]; done = 1; next}
           /^(sysrq: Power Off|reboot: Power down)$/ {next}
           {print; fflush()}
           END {exit done ? code : 125}' \
    || { status=$?; [ $status != 125 ] || sed 's/^/uml: /' "$work/kernel" >&2; exit $status; }
