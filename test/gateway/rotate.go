package main

import (
	"context"
	"fmt"
	"slices"

	"sallyport/appliance/group"
	"sallyport/appliance/status"
	"sallyport/test/rig"
)

// rotate drains the members of the group in turn, and lets each come back, until ctx ends. It returns
// how many times a member came back. At the end no member is drained.
func (s *session) rotate(ctx context.Context) (times int, err error) {
	whole := context.WithoutCancel(ctx)
	for ; ctx.Err() == nil; times++ {
		m := s.members[times%len(s.members)]
		for _, step := range []struct {
			args []string
			left string // the host of the member that has no clients then
		}{{[]string{"drain", "--wait"}, m.Machine()}, {[]string{"undrain"}, ""}} {
			if out, err := m.Run(whole, step.args...); err != nil {
				return times, fmt.Errorf("%s: sallyport %s: %w: %s", m.Machine(), step.args[0], err, out)
			}
			if err := s.serve(whole, step.left); err != nil {
				return times, fmt.Errorf("after sallyport %s on %s: %w", step.args[0], m.Machine(), err)
			}
		}
	}
	return times, nil
}

// serve waits until the router sends clients to all members but one, and these members hear of each
// other that they are full.
func (s *session) serve(ctx context.Context, but string) error {
	var want []string
	for _, m := range s.members {
		if m.Machine() != but {
			want = append(want, m.Machine())
		}
	}
	return rig.Eventually(ctx, fmt.Sprint(want, " serve"), func() error {
		err := s.SendsTo(ctx, want...)
		for _, m := range s.members {
			if err != nil || !slices.Contains(want, m.Machine()) {
				continue
			}
			var st status.Status
			if st, err = m.Status(ctx); err != nil {
				break
			}
			for _, other := range st.Group.Members {
				if slices.Contains(want, other.Name) && other.Class != group.Full {
					err = fmt.Errorf("%s hears that %s is %s", m.Machine(), other.Name, other.Class)
				}
			}
		}
		return err
	})
}
