package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"sallyport/test/rig"
)

// memories returns the attacks by a tenant on what the appliance itself remembers and reports.
func memories() []attack {
	return []attack{
		{
			by: "tenant", tries: "has Ingresses of more bytes than a namespace may have",
			promise: "all its clients are rejected, since an Ingress that is left out may be a guard; " +
				"others are served",
			lab: fillsObjects,
		},
		{
			by: "tenant", tries: "has an Ingress with 60 paths to Services that are not there",
			promise: "the status tells 20 problems of one object, and counts the rest",
			objects: func(*testbed) string {
				var paths []string
				for i := range 60 {
					paths = append(paths, path(fmt.Sprintf("/%d", i), fmt.Sprintf("gone%d", i)))
				}
				return ingressOf("evil", "complains", nil, rule("complains."+evilHost, paths...))
			},
			lab: fillsStatus,
		},
	}
}

// fillsObjects gives a namespace 64 kB for its Ingresses, and has evil write more.
func fillsObjects(ctx context.Context, s *testbed, r *rig.Rig) error {
	wide := func(i int) string {
		name := fmt.Sprintf("wide%d", i)
		// kubectl apply keeps a copy of its own in the annotations, which does not count.
		said := []string{"bare example.com/note: " + strings.Repeat("a", 20_000)}
		return ingressOf("evil", name, said, rule(name+"."+evilHost, path("/", "app")))
	}
	first := request{host: "wide0." + evilHost}
	small := func(text string) string {
		return strings.Replace(text, "limits: {", "limits: {objectBytes: 65536, ", 1)
	}
	return configured(ctx, r, small, func() error {
		if err := s.Apply(ctx, wide(0)); err != nil {
			return err
		}
		err := s.eventually(ctx, func() error { return s.gets(ctx, "200 evil", first) })
		var rest strings.Builder
		for i := 1; i < 5; i++ {
			rest.WriteString(wide(i))
		}
		if err == nil {
			err = s.Apply(ctx, rest.String())
		}
		if err == nil {
			err = s.eventually(ctx, func() error { return s.gets(ctx, "503", first) })
		}
		if err == nil {
			err = errors.Join(told("wide0", "objectBytes")(ctx, s), s.unharmed(ctx))
		}
		return errors.Join(err, s.Delete(ctx, wide(0)+rest.String()), s.seen(ctx))
	})
}

// fillsStatus counts the lines of the status about one object.
func fillsStatus(ctx context.Context, s *testbed, r *rig.Rig) error {
	const most = 20
	return s.eventually(ctx, func() error {
		status, err := r.Status(ctx)
		if err != nil {
			return err
		}
		of, rest := 0, ""
		for _, p := range status.Problems {
			if p.Object != "Ingress evil/complains" {
				continue
			}
			if of++; strings.Contains(p.Why, "more problems with this object") {
				rest = p.Why
			}
		}
		if of != most+1 || rest == "" {
			return fmt.Errorf("the status tells %d problems of the Ingress, want %d and a count of the rest: %q", of,
				most, rest)
		}
		return nil
	})
}
