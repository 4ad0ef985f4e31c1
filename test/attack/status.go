package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// watchers returns the attacks of neighbours on the status endpoint, where it listens to a network.
func watchers() []attack {
	return []attack{
		{
			by: "neighbour", tries: "sends wrong passwords to the status endpoint from 1,100 addresses",
			promise: "the right password passes, from any address", lab: listening(lockOut),
		},
		{
			by: "neighbour", tries: "has the password, and opens 20 live pages of the status endpoint",
			promise: "an address has four live pages at once, and others have room", lab: listening(watches),
		},
	}
}

// An endpoint is the status endpoint at an address of the appliance.
type endpoint struct{ client http.Client }

const (
	statusPassword = "correct-horse-battery"
	statusAddress  = applianceAddr + ":9443"
)

// listening lets the status endpoint listen to the network during an attack. A neighbour has the
// addresses 10.66.0.0/16.
func listening(attack func(context.Context, *endpoint) error) labAttack {
	return func(ctx context.Context, s *testbed, r *rig.Rig) (err error) {
		crt, key, err := s.victim.pair("status.test")
		if err != nil {
			return err
		}
		file := r.Dir + "/status.pem"
		before, err := os.ReadFile(r.Dir + "/sallyport.yaml")
		if err := errors.Join(err, os.WriteFile(file, slices.Concat(crt, key), 0o600)); err != nil {
			return err
		}
		ways := [][]string{
			{world.Client, "ip", "route", "add", "local", "10.66.0.0/16", "dev", "lo"},
			{world.Appliance, "ip", "route", "add", "10.66.0.0/16", "via", clientAddr},
		}
		for _, way := range ways {
			if _, err := r.Exec(ctx, way[0], way[1:]...); err != nil {
				return err
			}
			defer func() {
				way[3] = "del"
				_, e := r.Exec(ctx, way[0], way[1:]...)
				err = errors.Join(err, e)
			}()
		}
		e := new(endpoint)
		e.client.Transport = &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // its own certificate
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return r.DialFrom(ctx, world.Client, ctx.Value(from{}).(netip.Addr), statusAddress)
			},
		}
		more := fmt.Sprintf("status: {listen: %q, password: %s, tls: {certificate: %[3]s, key: %[3]s}}\n",
			statusAddress, statusPassword, file)
		defer func() {
			back := func() error { _, err := r.Status(ctx); return err }
			err = errors.Join(err, rewrite(r, string(before)), s.eventually(ctx, back), s.unharmed(ctx))
		}()
		listens := func() error { return e.gets(ctx, neighbour(0), statusPassword, http.StatusOK) }
		if err := errors.Join(rewrite(r, string(before)+more), s.eventually(ctx, listens)); err != nil {
			return err
		}
		return attack(ctx, e)
	}
}

// from is the key of the address that a request comes from.
type from struct{}

// neighbour returns the nth address of the neighbour.
func neighbour(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 66, byte(n >> 8), byte(n)}) }

// ask sends a request from an address.
func (e *endpoint) ask(ctx context.Context, addr netip.Addr, password, path string) (*http.Response, error) {
	ctx = context.WithValue(ctx, from{}, addr)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+statusAddress+path, nil)
	if err != nil {
		return nil, err
	}
	r.SetBasicAuth("any", password)
	return e.client.Do(r)
}

// gets checks the status of an answer to a password.
func (e *endpoint) gets(ctx context.Context, addr netip.Addr, password string, want int) error {
	got, err := e.ask(ctx, addr, password, "/status")
	if err != nil {
		return err
	}
	defer got.Body.Close() //nolint:errcheck // only read from
	if _, err := io.Copy(io.Discard, got.Body); err != nil {
		return err
	}
	if got.StatusCode != want {
		return fmt.Errorf("%s with the password %q gets %s, want %d", addr, password, got.Status, want)
	}
	return nil
}

// lockOut sends a wrong password from each of many addresses, and twenty from one more. The right
// one has to pass from that one, and from an address that was never seen.
func lockOut(ctx context.Context, e *endpoint) error {
	const guessers, guesses = 1100, 20
	errs := make([]error, guessers)
	var all sync.WaitGroup
	room := make(chan struct{}, 16)
	for i := range guessers {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			got, err := e.ask(ctx, neighbour(1000+i), "wrong", "/status")
			if err == nil {
				err = got.Body.Close()
				if got.StatusCode == http.StatusOK {
					err = errors.New("a wrong password passes")
				}
			}
			errs[i] = err
		})
	}
	all.Wait()
	waits := false
	for range guesses {
		got, err := e.ask(ctx, neighbour(1), "wrong", "/status")
		if err != nil {
			return err
		}
		waits = waits || got.StatusCode == http.StatusTooManyRequests
		errs = append(errs, got.Body.Close())
	}
	if !waits {
		errs = append(errs, fmt.Errorf("whoever sends %d wrong passwords never waits", guesses))
	}
	for _, addr := range []netip.Addr{neighbour(1), neighbour(2)} {
		errs = append(errs, e.gets(ctx, addr, statusPassword, http.StatusOK))
	}
	return errors.Join(errs...)
}

// watches opens live pages from one address, and then one from another address.
func watches(ctx context.Context, e *endpoint) error {
	const most, pages = 4, 20
	live := func(addr netip.Addr) (is bool, leave func(), err error) {
		bounded, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(ctx, cancel)
		late := time.AfterFunc(patience, cancel)
		got, err := e.ask(bounded, addr, statusPassword, "/live?page=/") //nolint:bodyclose // leave closes it
		if err != nil {
			cancel()
			return false, func() {}, err
		}
		leave = func() {
			_ = got.Body.Close()
			stop()
			cancel()
		}
		if got.StatusCode == http.StatusOK {
			_, err = bufio.NewReader(got.Body).ReadString('\n')
		}
		late.Stop()
		return got.StatusCode == http.StatusOK, leave, err
	}
	has := 0
	for range pages {
		is, leave, err := live(neighbour(1))
		defer leave()
		if err != nil {
			return err
		}
		if is {
			has++
		}
	}
	if has != most {
		return fmt.Errorf("one address has %d live pages, want %d", has, most)
	}
	is, leave, err := live(neighbour(2))
	defer leave()
	if err == nil && !is {
		err = errors.New("another address gets no live page")
	}
	return err
}
