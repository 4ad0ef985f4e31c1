package routes

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A subscription is a socket that gets a message of the kernel for each change of a link, an
// address, a route, a rule or a next hop object. The kernel puts the message there before the system call
// that changed something returns. Therefore an empty socket means that nothing has changed since
// the last look, with one exception: see settling.
type subscription struct {
	file *os.File
	raw  syscall.RawConn
}

const (
	// settling is how long after a message the kernel may go on changing. When a link goes
	// down, or an address is removed, the kernel sends the message, then removes the IPv4
	// routes over it, and sends no messages for those.
	settling = 100 * time.Millisecond
	// trusted is the greatest age of a reading that stands for the kernel's state. It
	// bounds how long a change that the kernel does not announce is missed.
	trusted = 900 * time.Millisecond
)

func subscribe() (*subscription, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &subscription{file: os.NewFile(uintptr(fd), "netlink")}
	to := unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	for _, group := range []uint{
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEXTHOP,
		unix.RTNLGRP_IPV4_RULE,
	} {
		to.Groups |= 1 << (group - 1)
	}
	// Room for tens of thousands of route messages. A smaller buffer does no harm: see
	// heard.
	err = errors.Join(
		os.NewSyscallError("bind", unix.Bind(fd, &to)),
		os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)),
	)
	if err == nil {
		s.raw, err = s.file.SyscallConn()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *subscription) close() { _ = s.file.Close() }

// heard takes all messages from the socket fd, and reports whether there were messages. ENOBUFS
// means that messages did not fit into the buffer: the socket goes on, and the caller reads
// everything anyway.
func heard(fd uintptr) (news bool, err error) {
	var first [1]byte // the kernel drops the rest of a message
	for {
		_, err := unix.Read(int(fd), first[:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			return news, nil
		case errors.Is(err, unix.EINTR):
		case err != nil && !errors.Is(err, unix.ENOBUFS):
			return true, os.NewSyscallError("read", err)
		default:
			news = true
		}
	}
}

// A reading is the value of something in the kernel at a moment.
type reading[T any] struct {
	value T
	began time.Time // zero until the first reading
}

// recall returns the last value if the kernel has announced no change since it was read. Otherwise
// it reads the value again.
func recall[T any](k *Kernel, last *reading[T], read func() (T, error)) (T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	began := time.Now()
	if k.quiet() && last.began.After(k.changedAt.Add(settling)) && began.Sub(last.began) < trusted {
		return last.value, nil
	}
	*last = reading[T]{}
	value, err := read()
	if err == nil {
		*last = reading[T]{value, began}
	}
	return value, err
}

// quiet takes the messages that are there. It reports whether changedAt holds the time of the last
// message. The caller holds mu.
func (k *Kernel) quiet() bool {
	if k.events == nil {
		return false
	}
	known := false
	_ = k.events.raw.Control(func(fd uintptr) {
		news, err := heard(fd)
		known = err == nil
		k.note(news)
	})
	return known
}

// note notes a change, and knocks. The caller holds mu.
func (k *Kernel) note(news bool) {
	if news {
		k.changedAt = time.Now()
		k.knock()
	}
}

// listen turns the kernel's messages into knocks. Links and addresses count as
// well as routes: when a link goes down the kernel drops the IPv4 routes over it
// and sends no message for them.
func (k *Kernel) listen(ctx context.Context, events *subscription) {
	defer close(k.done)
	for {
		k.mu.Lock()
		k.events = events
		k.note(true) // it may have missed something
		k.mu.Unlock()
		stop := context.AfterFunc(ctx, events.close)
		err := k.receive(events)
		stop()
		k.mu.Lock()
		k.events = nil
		k.mu.Unlock()
		events.close()
		if ctx.Err() != nil {
			return
		}
		k.cfg.Log.Warn("subscription to the kernel's route changes broke, subscribing again", "error", err)
		if events = k.resubscribe(ctx); events == nil {
			return
		}
	}
}

// receive knocks for messages until the socket fails.
func (k *Kernel) receive(events *subscription) error {
	for {
		var fault error
		err := events.raw.Read(func(fd uintptr) (done bool) {
			k.mu.Lock()
			defer k.mu.Unlock()
			news, err := heard(fd)
			k.note(news)
			fault = err
			return news
		})
		if err := errors.Join(fault, err); err != nil {
			return err
		}
	}
}

// resubscribe tries to subscribe once a second. It returns nil when ctx has ended.
func (k *Kernel) resubscribe(ctx context.Context) *subscription {
	retry := time.NewTicker(time.Second)
	defer retry.Stop()
	for {
		if events, err := subscribe(); err == nil {
			return events
		}
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
		}
	}
}
