package haproxy

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestAnAnswerHasTheRateOfItsBackend has HAProxy from 2.7 on. An older one answers that it has no such limit.
func TestAnAnswerHasTheRateOfItsBackend(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(strings.Repeat("x", 3000)))
	}))
	t.Cleanup(server.Close)
	withEach(t, func(t *testing.T, binary string) {
		r := newRig(t, binary)
		verdicts, err := r.p.Vet(t.Context(), []Question{RateSupport()})
		if err != nil {
			t.Fatal(err)
		}
		if why := verdicts[RateSupport().Part()].Why; why != "" {
			if !strings.Contains(why, "bwlim-out") || !strings.Contains(t.Name(), "2.6") {
				t.Errorf("HAProxy has no such limit: %s", why)
			}
			return
		}
		b := backend("b", serverAt(server.Listener.Addr()))
		b.Directives = []Directive{LimitRate(1000)}
		cfg := r.config(b)
		r.settle(cfg, states(cfg, Open))
		began := time.Now()
		if status, body := ask(t, r.client(""), "http://b.test/"); status != http.StatusOK || len(body) != 3000 {
			t.Errorf("status %d, %d bytes", status, len(body))
		}
		if took := time.Since(began); took < time.Second {
			t.Errorf("3000 bytes took %v, with 1000 a second", took)
		}
	})
}
