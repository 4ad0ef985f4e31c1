package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// spread waits until the router sends connections to this number of members.
func (s *testbed) spread(ctx context.Context, members int) error {
	return rig.Eventually(ctx, fmt.Sprintf("%d members have the service address", members), func() error {
		out, err := s.Exec(ctx, world.Router, "ip", "route", "show", "203.0.113.10")
		if n := strings.Count(out, "via "); err == nil && n != members {
			err = fmt.Errorf("the router has %q", out)
		}
		return err
	})
}

// last returns the member that faults befall. The observer watches the first one.
func (s *testbed) last() *rig.Rig { return s.others[len(s.others)-1] }

func drainMember(ctx context.Context, s *testbed) error {
	all := len(s.members())
	for _, step := range []struct {
		command string
		members int
	}{{"drain", all - 1}, {"undrain", all}} {
		if out, err := s.last().Run(ctx, step.command); err != nil {
			return fmt.Errorf("sallyport %s: %w: %s", step.command, err, out)
		}
		if err := s.spread(ctx, step.members); err != nil {
			return err
		}
	}
	return nil
}

func restartMember(ctx context.Context, s *testbed) error {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := errors.Join(s.last().Stop(signal), s.spread(ctx, len(s.members())-1), s.last().Start(ctx), s.settle(ctx), s.spread(ctx, len(s.members()))); err != nil {
			return err
		}
	}
	return nil
}

func cutMember(ctx context.Context, s *testbed) error {
	host := world.ApplianceHost(len(s.members()))
	if err := s.KillNode(ctx, host); err != nil {
		return err
	}
	err := s.spread(ctx, len(s.members())-1)
	return errors.Join(err, s.ReviveNode(ctx, host), s.spread(ctx, len(s.members())))
}
