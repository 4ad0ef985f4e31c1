package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"sallyport/test/rig"
)

// costs returns the attacks by a tenant who asks for as much of what all share as a key can say.
func costs() []attack {
	all := []attack{
		{
			tries:   "has rate limits that count clients without end",
			promise: "the tables of a namespace count no more clients than its limit, and limit all the same",
			objects: func(*testbed) string {
				said := []string{
					"rate-limit-requests: 2", "rate-limit-size: 1g", "rate-limit-period: 24d",
					"sallyport.dev/limit-connections: 100", "src-ip-header: X-Client",
				}
				return ingressOf("evil", "hoards", said, rule("hoards."+evilHost, path("/", "app"))) +
					ingressOf("evil", "hoards-more", said, rule("hoards-more."+evilHost, path("/", "app")))
			},
			holds: both(both(told("hoards", "limits.clients"), told("hoards", "rate-limit-period")),
				both(told("hoards-more", "limits.clients"), func(ctx context.Context, s *testbed) error {
					limited := request{host: "hoards." + evilHost, header: "X-Client: 203.0.113.9\r\n"}
					return s.eventually(ctx, func() error { return s.gets(ctx, "403", limited) })
				})),
		},
		{
			tries:   "has its servers checked every millisecond",
			promise: "no server of a tenant is checked more often than every 500 ms",
			objects: func(*testbed) string {
				return ingressOf("evil", "checks", []string{"check-interval: 1ms"},
					rule("checks."+evilHost, path("/", "app")))
			},
			holds: told("checks", "check-interval"),
		},
		{
			tries:   "captures 16 samples of 65,535 bytes of each request",
			promise: "what a request keeps for the log is bounded for each Ingress",
			objects: func(*testbed) string {
				said := []string{
					"request-capture: " + strings.Repeat("req.hdr(X-Large)\n", 16),
					"request-capture-len: 65535",
				}
				return ingressOf("evil", "captures", said, rule("captures."+evilHost, path("/", "app")))
			},
			holds: told("captures", "captureBytes"),
		},
		{
			tries:   "has slow hashes, and a client that sends wrong passwords",
			promise: "few wrong passwords of a namespace are compared in a second; right ones that are known pass",
			objects: func(*testbed) string {
				const slow = "---\napiVersion: v1\nkind: Secret\nmetadata: {namespace: evil, name: slow}\n" +
					"stringData: {ann: \"$2y$08$abcdefghijklmnopqrstuuKxCcvB7KZ7.BpDoK0bh6qM7Dl1/xiJa\"}\n"
				return slow + ingressOf("evil", "slow", []string{"auth-secret: slow"},
					rule("slow."+evilHost, path("/", "app")))
			},
			holds: guesses,
		},
		{
			tries:   "has a guard and headers of 100 kB, which HAProxy's configuration repeats for 100 Services",
			promise: "the keys of a namespace take 4 MiB there; what is beyond is closed, and no way past its guard",
			objects: func(*testbed) string {
				// An object has 256 kB of annotations, and kubectl apply keeps a copy of its own in them.
				long := strings.Repeat("X-Long "+strings.Repeat("a", 4000)+"\n", 25)
				said := []string{"allow-list: 203.0.113.1", "request-set-header: " + long}
				paths := []string{path("/", "app")}
				for i := range 100 {
					paths = append(paths, path(fmt.Sprintf("/%d", i), fmt.Sprintf("app%d", i)))
				}
				return ingressOf("evil", "wide", nil, rule("repeated."+evilHost, path("/", "app"))) +
					ingressOf("evil", "repeated", said, rule("repeated."+evilHost, paths...))
			},
			holds: func(ctx context.Context, s *testbed) error {
				return errors.Join(told("repeated", "configBytes")(ctx, s),
					s.gets(ctx, "503", request{host: "repeated." + evilHost, target: "/1"}))
			},
		},
		{
			tries:   "is a namespace for whose host one client guesses passwords without end",
			promise: "new logins of clients of other networks pass meanwhile",
			objects: func(*testbed) string {
				var users strings.Builder
				users.WriteString("---\napiVersion: v1\nkind: Secret\nmetadata: {namespace: evil, name: team}\n" +
					"stringData:\n")
				for i := range teamSize {
					fmt.Fprintf(&users, "  u%d: \"$2y$08$abcdefghijklmnopqrstuuKxCcvB7KZ7.BpDoK0bh6qM7Dl1/xiJa\"\n", i)
				}
				said := []string{"auth-secret: team", "src-ip-header: X-Client"}
				return users.String() + ingressOf("evil", "team", said, rule("team."+evilHost, path("/", "app")))
			},
			holds: strangersLogIn,
		},
	}
	for i := range all {
		all[i].by = "tenant"
	}
	return all
}

// remakes changes wildcard hosts of evil, which has 1 % of the time. Its changes have to wait, and those of
// victim have to be in effect meanwhile.
func remakes(ctx context.Context, s *testbed, r *rig.Rig) error {
	wildcards := func(round int) string {
		var rules []string
		for i := range 100 {
			rules = append(rules, rule(fmt.Sprintf("*.remakes-%d.%s", i, evilHost), path(fmt.Sprintf("/%d", round), "app")))
		}
		return ingressOf("evil", "remakes", nil, rules...)
	}
	limits := fmt.Sprintf("reloads: %d, routing: 1", rig.NoReloadLimit)
	return configured(ctx, r, limited(limits), func() error {
		rounds, err := s.against(ctx, wildcards, func() error {
			return errors.Join(told("remakes", "limits.routing")(ctx, s), s.changes(ctx, "remade"))
		})
		if err != nil {
			err = fmt.Errorf("beside %d changes of evil: %w", rounds, err)
		}
		return err
	})
}

// guesses sends wrong passwords as fast as they are answered, and counts those that are compared:
// the others are answered 429.
func guesses(ctx context.Context, s *testbed) error {
	right := request{host: "slow." + evilHost, header: basicAuth}
	if err := s.eventually(ctx, func() error { return s.gets(ctx, "200 evil", right) }); err != nil {
		return err
	}
	const sent, mostInASecond = 100, 10
	compared, begin := 0, time.Now()
	for i := range sent {
		got, err := s.ask(ctx, request{host: right.host, header: "Authorization: Basic " +
			encode(fmt.Sprintf("ann:wrong%d", i)) + "\r\n"})
		if err != nil {
			return err
		}
		switch got.status {
		case http.StatusUnauthorized:
			compared++
		case http.StatusTooManyRequests:
		default:
			return fmt.Errorf("a wrong password: %.100s", got)
		}
	}
	var err error
	if most := mostInASecond * (2 + int(time.Since(begin)/time.Second)); compared > most {
		err = fmt.Errorf("%d of %d wrong passwords were compared, want at most %d", compared, sent, most)
	}
	return errors.Join(err, s.gets(ctx, "200 evil", right))
}

// teamSize is the number of users of the namespace for which strangersLogIn guesses.
const teamSize = 12

// strangersLogIn guesses as one client until its passwords are not compared any more. Then each
// user logs in for the first time, from a network of its own: a few of them share the part of
// all networks that the guesses keep out.
func strangersLogIn(ctx context.Context, s *testbed) error {
	login := func(client, credentials string) (int, error) {
		got, err := s.ask(ctx, request{
			host:   "team." + evilHost,
			header: "X-Client: " + client + "\r\nAuthorization: Basic " + encode(credentials) + "\r\n",
		})
		return got.status, err
	}
	err := s.eventually(ctx, func() error {
		status, err := login("192.0.2.1", "u0:wrong")
		if err == nil && status != http.StatusTooManyRequests {
			err = fmt.Errorf("a wrong password is answered %d", status)
		}
		return err
	})
	if err != nil {
		return err
	}
	in := 0
	for i := range teamSize {
		status, err := login(fmt.Sprintf("198.51.100.%d", i+1), fmt.Sprintf("u%d:secret", i))
		if err != nil {
			return err
		}
		if status == http.StatusOK {
			in++
		}
	}
	if 2*in < teamSize {
		return fmt.Errorf("while one client guesses, %d of %d others can log in", in, teamSize)
	}
	return nil
}

// otherHeaders checks that a pod of a guarded host sees none of the headers in which some servers
// look for the path, and that a pod of another host does.
func otherHeaders(ctx context.Context, s *testbed) error {
	const header = "X-Original-URL: /admin\r\nX_Rewrite.Url: /admin\r\n"
	for host, want := range map[string]bool{"guarded.test": false, "plain.test": true} {
		got, err := s.ask(ctx, request{host: host, header: header})
		if err != nil || got.pod != "victim" {
			return errors.Join(err, fmt.Errorf("%s: %.300s", host, got))
		}
		if saw := strings.Contains(fmt.Sprint(got.saw.Headers), "/admin"); saw != want {
			return fmt.Errorf("%s: the pod saw %v", host, got.saw.Headers)
		}
	}
	return nil
}
