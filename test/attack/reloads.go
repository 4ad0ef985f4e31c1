package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"sallyport/test/rig"
)

// budget is how many reloads a namespace may cause at once by default.
const budget = 5

// reloads lets evil cause the reloads of a namespace by default (see flips).
func reloads(ctx context.Context, s *testbed, r *rig.Rig) error {
	return configured(ctx, r, limited(fmt.Sprintf("reloads: %d", budget)), func() error {
		// A new process does not know how much of its budget victim has used in other cases.
		if err := errors.Join(r.Stop(syscall.SIGTERM), r.Start(ctx), r.Ready(ctx)); err != nil {
			return err
		}
		return flips(ctx, s, r)
	})
}

// flips changes a setting of evil more often than HAProxy keeps old workers, while victim has a
// connection open. Afterwards evil adds a guard.
func flips(ctx context.Context, s *testbed, r *rig.Rig) (err error) {
	const changes = 25                  // HAProxy keeps 20 old workers
	if err := s.seen(ctx); err != nil { // victim has used a part of its own budget
		return err
	}
	conn, err := s.connect(ctx, request{host: "plain.test"})
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it is over by then
	_ = conn.SetDeadline(time.Time{})
	if _, err := io.WriteString(conn, "GET /slow?d=1h&every=50ms HTTP/1.1\r\nHost: plain.test\r\n\r\n"); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, conn)
		ended <- fmt.Errorf("the answer to victim's client ends: %w", err)
	}()

	setting := func(annotation string) string {
		return ingressOf("evil", "flips", []string{annotation}, rule("flips."+evilHost, path("/", "app")))
	}
	defer func() { err = errors.Join(err, s.Delete(ctx, setting("timeout-server: 1s"))) }()
	began := time.Now()
	before, err := r.Status(ctx)
	if err != nil {
		return err
	}
	last := before.HAProxy.Reloads
	for i := range changes {
		if err := s.Apply(ctx, setting(fmt.Sprintf("timeout-server: %ds", 100+i))); err != nil {
			return err
		}
		err := s.eventually(ctx, func() error {
			now, err := r.Status(ctx)
			if err == nil && now.HAProxy.Reloads == last && len(now.HAProxy.Waits) == 0 {
				err = errors.New("a change of evil causes no reload, and does not wait for one")
			}
			last = max(last, now.HAProxy.Reloads)
			return err
		})
		if err != nil {
			return err
		}
	}
	most := budget + 1 + int(time.Since(began)/(30*time.Second)) // the last change may have been seen before its reload
	if caused := last - before.HAProxy.Reloads; caused > most {
		err = fmt.Errorf("%d changes of evil caused %d reloads; want at most %d", changes, caused, most)
	}
	err = errors.Join(err, told("flips", "LimitReached")(ctx, s))

	// A guard holds all the same, and victim has its own budget.
	if e := s.Apply(ctx, setting("allow-list: 10.99.0.1")); e != nil {
		return errors.Join(err, e)
	}
	err = errors.Join(err, s.eventually(ctx, func() error {
		got, err := s.ask(ctx, request{host: "flips." + evilHost})
		if err == nil && got.pod != "" {
			err = errors.New("evil's own guard is not in force")
		}
		return err
	}), s.seen(ctx))
	select {
	case e := <-ended:
		err = errors.Join(err, e)
	default:
	}
	return err
}

// limited returns a change of the configuration that has these limits of a namespace, "key: value, ...", in
// place of that of a rig.
func limited(limits string) func(text string) string {
	return func(text string) string {
		return strings.Replace(text, fmt.Sprintf("limits: {reloads: %d}", rig.NoReloadLimit), "limits: {"+limits+"}", 1)
	}
}
