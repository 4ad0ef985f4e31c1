package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"sallyport/test/rig"
)

// profile begins profiles of the appliance among n objects, if -profiles is set. profiled ends them.
func (b *bench) profile(ctx context.Context, n int) {
	b.profiled = func() error { return nil }
	if b.profiles == "" {
		return
	}
	over, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- b.record(ctx, over, n) }()
	b.profiled = func() error {
		end()
		return <-ended
	}
}

// record writes a profile of the heap, of the processor until over ends, and of the heap
// again, into the folder of -profiles.
func (b *bench) record(ctx, over context.Context, n int) error {
	name := filepath.Join(b.profiles, fmt.Sprintf("row%d-%d.", b.row.number, n))
	done, end := context.WithCancel(ctx)
	end()
	return errors.Join(b.fetch(ctx, done, "heap", name+"heap-before.prof"), b.fetch(ctx, over, "cpu", name+"cpu.prof"),
		b.fetch(ctx, done, "heap", name+"heap.prof"))
}

// fetch asks the appliance for a profile: it sends the kind, ends its input when the profile
// is to end, and reads the profile. The appliance is built with the tag profile (see
// cmd/sallyport/profile.go).
func (b *bench) fetch(ctx, over context.Context, kind, file string) error {
	var c *net.UnixConn
	err := rig.Eventually(ctx, "the appliance gives profiles", func() (err error) {
		c, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: os.Getenv(profileSocket)})
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // only an exchange
	if _, err := fmt.Fprintln(c, kind); err != nil {
		return err
	}
	<-over.Done()
	if err := c.CloseWrite(); err != nil {
		return err
	}
	text, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// profileSocket is the variable of the environment that names the socket of the profiles.
const profileSocket = "SALLYPORT_PROFILE"
