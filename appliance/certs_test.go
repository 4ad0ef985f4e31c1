package appliance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/haproxy"
)

// A checker answers questions about certificates: HAProxy takes all but those in bad.
type checker struct {
	fakeProxy
	bad   map[haproxy.Part]bool
	runs  atomic.Int32
	asked [][]haproxy.Part
	err   error
}

func (j *checker) Vet(_ context.Context, questions []haproxy.Question) (haproxy.Verdicts, error) {
	j.runs.Add(1)
	verdicts := haproxy.Verdicts{}
	var parts []haproxy.Part
	for _, q := range questions {
		part := q.Part()
		verdicts[part] = haproxy.Good
		if j.bad[part] {
			verdicts[part] = haproxy.Refused("because")
		}
		parts = append(parts, part)
	}
	j.asked = append(j.asked, parts)
	if j.err != nil {
		return nil, j.err
	}
	time.Sleep(100 * time.Millisecond) //nolint:forbidigo // a fake clock
	return verdicts, nil
}

// A desk is a certs with a checker.
type desk struct {
	*certs
	checker *checker
	refused haproxy.Verdicts
	count   atomic.Int32 // of refused
}

func newDesk() *desk {
	d := &desk{checker: &checker{bad: map[haproxy.Part]bool{}}, refused: haproxy.Verdicts{}}
	d.certs = &certs{
		proxy: d.checker, log: slog.New(slog.DiscardHandler), changed: make(chan struct{}, 1),
		suspect: map[string]bool{},
		refuse: func(v haproxy.Verdicts) {
			maps.Copy(d.refused, v)
			d.count.Store(int32(len(d.refused))) //nolint:gosec // a few thousand
		},
	}
	return d
}

func certOf(owner, name, content string) *haproxy.Cert {
	return &haproxy.Cert{Name: name + ".pem", PEM: []byte(content), Owner: owner}
}

// names returns the certificates with their contents.
func names(all []*haproxy.Cert) (list []string) {
	for _, c := range all {
		list = append(list, c.Name+"="+string(c.PEM))
	}
	return list
}

func TestACertificateIsUsedOnceHAProxyTakesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		a, bad := certOf("victim", "a", "1"), certOf("evil", "bad", "2")
		d.checker.bad[bad.Question().Part()] = true
		check := func(when string, want []*haproxy.Cert, used []string, wantWaits bool) {
			t.Helper()
			use, waits := d.usable(t.Context(), want)
			if !slices.Equal(names(use), used) || waits != wantWaits {
				t.Errorf("%s: used are %q, waits is %v; want %q, %v", when, names(use), waits, used, wantWaits)
			}
		}
		both := []*haproxy.Cert{a, bad}
		check("before HAProxy answers", both, nil, true)
		time.Sleep(time.Second) //nolint:forbidigo // the clock of a synctest bubble
		check("after that", both, []string{"a.pem=1"}, false)
		if why := d.refused[bad.Question().Part()].Why; why != "because" || len(d.refused) != 1 {
			t.Errorf("refused are %v", d.refused)
		}
		if use, _ := d.usable(t.Context(), both); &use[0] != &d.use[0] || d.checker.runs.Load() != 1 {
			t.Errorf("nothing is new, and HAProxy was asked %d times", d.checker.runs.Load())
		}

		// The next one of the same name comes in its place once HAProxy takes it.
		next, worse := certOf("victim", "a", "3"), certOf("victim", "a", "4")
		d.checker.bad[worse.Question().Part()] = true
		check("a new content", []*haproxy.Cert{next}, []string{"a.pem=1"}, true)
		time.Sleep(time.Second) //nolint:forbidigo // the clock of a synctest bubble
		check("a new content that HAProxy takes", []*haproxy.Cert{next}, []string{"a.pem=3"}, false)
		check("a bad content", []*haproxy.Cert{worse}, []string{"a.pem=3"}, true)
		time.Sleep(time.Second) //nolint:forbidigo // the clock of a synctest bubble
		check("a content that HAProxy rejects", []*haproxy.Cert{worse}, []string{"a.pem=3"}, false)
		check("nothing", nil, nil, false)
		if len(d.answers) > 0 || len(d.parts) > 0 {
			t.Errorf("kept are %v, %v", d.answers, d.parts)
		}
	})
}

func TestAListenerIsClosedUntilHAProxyHasReadItsNewCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		first, second, of := certOf("a", "one", "1"), certOf("a", "one", "2"), "192.0.2.1:443"
		first.Scope, second.Scope = of, of
		for _, step := range []struct {
			what   string
			want   []*haproxy.Cert
			closed []string
		}{
			{"a new certificate", []*haproxy.Cert{first}, []string{of}},
			{"one that HAProxy has read", []*haproxy.Cert{first}, nil},
			{"another one in its place", []*haproxy.Cert{second}, nil},
			{"one without a listener", []*haproxy.Cert{second, certOf("b", "two", "1")}, nil},
		} {
			d.usable(ctx, step.want)
			if !slices.Equal(d.closed, step.closed) {
				t.Errorf("%s: got %q, want %q", step.what, d.closed, step.closed)
			}
			time.Sleep(time.Second) //nolint:forbidigo // a fake clock
		}
	})
}

func TestCertificatesOfOneOwnerDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		var all []*haproxy.Cert
		for i := range 2000 {
			c := certOf("evil", fmt.Sprintf("evil%d", i), fmt.Sprintf("evil %d", i))
			d.checker.bad[c.Question().Part()] = true
			all = append(all, c)
		}
		mine := certOf("victim", "mine", "mine")
		d.usable(t.Context(), all)
		all = append(all, mine)
		used := func() bool {
			use, _ := d.usable(t.Context(), all)
			return slices.Contains(use, mine)
		}
		if used() {
			t.Error("it is used although HAProxy was not asked")
		}
		for !used() {
			<-d.changed
		}
		if runs := d.checker.runs.Load(); runs > 2 {
			t.Errorf("HAProxy was asked %d times before it was asked about victim's", runs)
		}
		if _, waits := d.usable(t.Context(), all); waits {
			t.Error("a start would wait for the owner of bad ones")
		}
		for d.count.Load() < 2000 {
			<-d.changed
			used()
		}
		for _, asked := range d.checker.asked {
			if len(asked) > certsAtOnce {
				t.Errorf("asked about %d at once", len(asked))
			}
		}
	})
}

func TestHAProxyIsAskedAgainAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		d.checker.err = errors.New("no space left on device")
		all := []*haproxy.Cert{certOf("victim", "a", "1")}
		d.usable(t.Context(), all)
		<-d.changed
		d.checker.err = nil
		for use, _ := d.usable(t.Context(), all); len(use) == 0; use, _ = d.usable(t.Context(), all) {
			<-d.changed
		}
		if runs := d.checker.runs.Load(); runs != 2 {
			t.Errorf("HAProxy was asked %d times", runs)
		}
	})
}

func TestRefusedCertificatesReachTheCompilerTogether(t *testing.T) {
	v := newVetter(&fakeProxy{}, slog.New(slog.DiscardHandler))
	part := func(i int) haproxy.Part { return certOf("evil", "x", fmt.Sprint(i)).Question().Part() }
	now := time.Unix(1000, 0)
	v.refuse(haproxy.Verdicts{part(1): haproxy.Refused("because")})
	if got := v.known(now); len(got) != 1 {
		t.Errorf("the first at once: %v", got)
	}
	v.refuse(haproxy.Verdicts{part(2): haproxy.Refused("because")})
	v.refuse(haproxy.Verdicts{part(3): haproxy.Refused("because")})
	if got := v.known(now.Add(time.Second)); len(got) != 1 {
		t.Errorf("the next ones too early: %v", got)
	}
	if got := v.known(now.Add(judging)); len(got) != 3 {
		t.Errorf("the next ones: %v", got)
	}
}
