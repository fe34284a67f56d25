#!/usr/bin/env bash
# Runs one command as root under a stock Debian kernel in QEMU: two processors, nf_tables, every module; emulated, so no KVM
# and no root are needed on the host, and slow. The host's file system is there as in uml.sh; that one is the quick ring.
# tests/vm/qemu.sh COMMAND…     QEMU_KERNEL=linux-image-6.12-amd64 (a Debian package)   QEMU_MEMORY=2048   QEMU_SECONDS=600
# Its exit status is the command's; 77 if this machine cannot, 125 if the kernel died or the time was up.
set -euo pipefail
memory=${QEMU_MEMORY:-2048} seconds=${QEMU_SECONDS:-600} package=${QEMU_KERNEL:-linux-image-6.12-amd64}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vipd-vm/$package

cannot() {
    echo "qemu: $1" >&2
    exit 77
}
[ $# -gt 0 ] || { echo "usage: tests/vm/qemu.sh COMMAND…" >&2; exit 2; }
for program in qemu-system-x86_64 cpio depmod xz; do
    command -v "$program" >/dev/null || cannot "no $program (Debian: qemu-system-x86 cpio kmod xz-utils)"
done

# Kernel and busybox are unpacked into a cache, not installed: the busybox that an image needs (static) and the one that a
# host may have exclude each other. The package named is as a rule one that depends on the newest kernel.
if [ ! -f "$cache/complete" ]; then
    rm -rf "$cache" && mkdir -p "$cache"
    real=$(apt-cache depends "$package" 2>/dev/null | awk '/Depends: linux-image-/ {print $2; exit}')
    (cd "$cache" && apt-get download -qq "${real:-$package}" busybox-static >/dev/null 2>&1) ||
        cannot "no package $package or no busybox-static can be had"
    for deb in "$cache"/*.deb; do dpkg -x "$deb" "$cache" && rm "$deb"; done
    depmod -b "$cache" "$(ls "$cache/lib/modules")"
    touch "$cache/complete"
fi
version=$(ls "$cache/lib/modules")

work=$(mktemp -d /tmp/qemu.XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/root/{bin,modules,proc,sys,dev,host,rw,new}
cp "$cache/bin/busybox" "$work/root/bin/busybox"
# What it takes to reach the host's files, in the order of loading.
for module in virtio_pci 9pnet_virtio 9p overlay; do
    modprobe -d "$cache" -S "$version" --show-depends "$module" | awk '/^insmod/ {print $2}'
done | awk '!seen[$0]++' | while read -r file; do
    name=$(basename "$file" .xz)
    case $file in
        *.xz) xz -dc "$file" >"$work/root/modules/$name" ;;
        *) cp "$file" "$work/root/modules/$name" ;;
    esac
    echo "$name" >>"$work/root/order"
done

# First process: an overlay over the host's root becomes the root.
cat >"$work/root/init" <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for module in $($b cat /order); do $b insmod /modules/$module; done
options=trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro
$b mount -t 9p -o $options hostroot /host
$b mount -t tmpfs tmpfs /rw
$b mkdir /rw/upper /rw/work
$b mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work overlay /new
$b mount -t 9p -o $options modules /new/mnt
exec $b switch_root /new /bin/bash "$($b sed -n 's/.*vm_command=\([^ ]*\).*/\1/p' /proc/cmdline)"
INIT
chmod +x "$work/root/init"
(cd "$work/root" && find . | cpio -o -H newc --quiet) | gzip -1 >"$work/initramfs.gz"

# The command, and how it went: QEMU's own exit status says nothing.
cat >"$work/command" <<COMMAND
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
ln -s /proc/self/fd /dev/fd
mount -t tmpfs run /run
mkdir -p /lib/modules && ln -sfn /mnt/lib/modules/$version /lib/modules/$version
ip link set lo up
cd $(printf %q "$PWD")
echo vm-begins
( $(printf '%q ' "$@") ) </dev/null
echo "vm-exit-status:\$?"
echo o >/proc/sysrq-trigger
sleep 10
COMMAND

# no_timer_check: under load the emulated timer looks broken to the kernel, which panics.
timeout --foreground --kill-after=5 "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m "$memory" \
    -M q35 -nographic -no-reboot -nodefaults -serial stdio \
    -kernel "$cache/boot/vmlinuz-$version" -initrd "$work/initramfs.gz" \
    -append "console=ttyS0 no_timer_check quiet loglevel=3 panic=-1 mitigations=off vm_command=$work/command" \
    -fsdev "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap" \
    -device virtio-9p-pci,fsdev=root,mount_tag=hostroot \
    -fsdev "local,id=modules,path=$cache,security_model=none,readonly=on" \
    -device virtio-9p-pci,fsdev=modules,mount_tag=modules \
    </dev/null 2>"$work/said" \
    | stdbuf -o0 tr -d '\r' \
    | awk '/^vm-exit-status:/ {split($0, a, ":"); code = a[2]; done = 1; next}
           /sysrq: Power Off|reboot: Power down/ {next}
           # What the firmware and the boot say matters only if there is nothing else.
           !begun && /vm-begins$/ {begun = 1; next}
           !begun {boot = boot $0 "\n"; next}
           {print; fflush()}
           END {if (!begun) printf "%s", boot; exit done ? code : 125}' \
    || { status=$?; [ $status != 125 ] || sed 's/^/qemu: /' "$work/said" >&2; exit $status; }
