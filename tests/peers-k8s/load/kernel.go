package main

import (
	"bytes"
	"net/netip"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernel sees commits: of nf_tables by its notifications, of legacy iptables by the size of the nat table, polled.
type kernel struct {
	legacy int // a raw socket, or -1
	mutex  sync.Mutex
	mark   []byte
	seen   chan time.Time
}

func watch(by string) *kernel {
	if by == "legacy" {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
		fail(err)
		return &kernel{legacy: fd}
	}
	const groupNfTables = 7
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	fail(err)
	fail(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	fail(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<29))
	fail(unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, groupNfTables))
	k := &kernel{legacy: -1}
	go k.listen(fd)
	return k
}

func (k *kernel) listen(fd int) {
	buffer := make([]byte, 1<<20)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if err != nil {
			continue // ENOBUFS: the change being waited for is missed, and the caller's patience ends
		}
		at := time.Now()
		k.mutex.Lock()
		if k.mark != nil && bytes.Contains(buffer[:n], k.mark) {
			k.mark = nil
			k.seen <- at
		}
		k.mutex.Unlock()
	}
}

// next says when the kernel commits something that holds this address.
func (k *kernel) next(ip string) <-chan time.Time {
	seen := make(chan time.Time, 1)
	if k.legacy >= 0 {
		before := natSize(k.legacy)
		go func() {
			for natSize(k.legacy) == before {
				time.Sleep(time.Millisecond)
			}
			seen <- time.Now()
		}()
		return seen
	}
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.mark, k.seen = netip.MustParseAddr(ip).AsSlice(), seen
	return seen
}

// natSize is how many entries and bytes the kernel's legacy nat table has (IPT_SO_GET_INFO, struct ipt_getinfo).
func natSize(fd int) [2]uint32 {
	const getInfo = 64
	var info struct {
		name           [32]byte
		hooks          uint32
		entry, flow    [5]uint32
		entries, bytes uint32
	}
	copy(info.name[:], "nat")
	length := uint32(unsafe.Sizeof(info))
	_, _, _ = unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_IP, getInfo, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&length)), 0)
	return [2]uint32{info.entries, info.bytes}
}
