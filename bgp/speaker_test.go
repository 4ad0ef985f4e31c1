package bgp

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"sallyport/test/wait"
)

func TestAPasswordIsNeverShown(t *testing.T) {
	t.Parallel()
	const secret = "correct horse"
	p := Peer{Cluster: "main", Node: "worker", Addr: netip.MustParseAddr("192.0.2.1"), ASN: 65000, Password: secret}
	shown := new(wait.Log)
	for _, v := range []any{p, &p, p.Password, PeerState{Peer: p}, []Peer{p}, map[string]Peer{"a": p}, struct {
		S Secret
	}{secret}} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(shown, "%s\n%v\n%+v\n%#v\n%s\n%q\n%x\n%d\n", b, v, v, v, v, v, v, v)
		slog.New(slog.NewTextHandler(shown, nil)).Info("text", "v", v)
		slog.New(slog.NewJSONHandler(shown, nil)).Info("json", "v", v)
	}
	for _, form := range []string{secret, fmt.Sprintf("%x", secret), fmt.Sprintf("%d", []byte(secret))} {
		if strings.Contains(shown.String(), form) {
			t.Errorf("%q is in:\n%s", form, shown)
		}
	}
	b, err := json.Marshal(p)
	if err != nil || strings.Contains(strings.ToLower(string(b)), "password") {
		t.Errorf("JSON is %s, %v, want no password", b, err)
	}
}

func TestAKeyTheKernelRefusesIsAnErrorUntilItIsTaken(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sp := s.speaker(t, 65000, 0, usualPace)
	// This key is longer than the kernel accepts, and bypasses our own check of that.
	p := Peer{Addr: s.addrs(66)[0], ASN: 65000, Password: Secret(strings.Repeat("x", 81))}.withDefaults()
	for range 2 {
		sp.ops.Lock()
		err := sp.ensure(p)
		sp.ops.Unlock()
		if err == nil || !strings.Contains(err.Error(), "cannot be set") {
			t.Fatalf("error is %v, want that the password cannot be set", err)
		}
		if got := sp.peer(t, p.Addr); got.State != idle {
			t.Errorf("peer is %+v, want Idle", got)
		}
	}
	p.Password = "short"
	sp.set(t, p)
}

func TestStartSaysWhatToDo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	taken, err := net.Listen("tcp", netip.AddrPortFrom(s.us[0], 179).String())
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	fine := Config{ASN: 65000, RouterID: s.us[0], HoldTime: 9 * time.Second}
	for want, c := range map[string]Config{
		"no AS number":              {RouterID: s.us[0]},
		"has to be an IPv4 address": {ASN: 65000, RouterID: s.us[1]},
		"no hold time is given":     {ASN: 65000, RouterID: s.us[0]},
		"another program already does": {
			ASN: 65000, RouterID: s.us[0], HoldTime: 9 * time.Second,
			Listen: s.us[:1],
		},
		"no interface of this machine has": {
			ASN: 65000, RouterID: s.us[0], HoldTime: 9 * time.Second,
			Listen: []netip.Addr{netip.MustParseAddr("192.0.2.77")},
		},
	} {
		if sp, err := Start(t.Context(), c); err == nil {
			sp.Stop()
			t.Errorf("no error, want %q", want)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("error is %q, want %q in it", err, want)
		}
	}
	fine.Port = 1179
	nowhere, err := Start(t.Context(), fine)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range s.us {
		if c, err := net.Dial("tcp", netip.AddrPortFrom(a, 1179).String()); err == nil {
			t.Error("without addresses to listen on somebody could connect")
			_ = c.Close()
		}
	}
	nowhere.Stop()
	fine.Listen, fine.Port = s.us[1:], 0
	sp, err := Start(t.Context(), fine)
	if err != nil {
		t.Fatal(err)
	}
	sp.Stop()
	sp.Stop()
	if _, err := sp.Offers(); !errors.Is(err, ErrStopped) {
		t.Errorf("Offers after Stop gives %v, want %v", err, ErrStopped)
	}
	if err := sp.SetPeers(nil); !errors.Is(err, ErrStopped) {
		t.Errorf("SetPeers after Stop gives %v, want %v", err, ErrStopped)
	}
}

func TestStartSaysWhichPermissionIsMissing(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("setpriv", "--bounding-set=-net_bind_service", "--inh-caps=-net_bind_service", "/proc/self/exe")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Args[len(cmd.Args)-1] = self
	cmd.Env = append(os.Environ(), roleEnv+"=start")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "CAP_NET_BIND_SERVICE") {
		t.Errorf("it says %q, %v", out, err)
	}
}

func TestWhatGoBGPSaysIsPassedOnAtFittingLevels(t *testing.T) {
	t.Parallel()
	out := new(wait.Log)
	gobgp := newTap(slog.NewTextHandler(out, nil)).WithAttrs([]slog.Attr{slog.String("Topic", "Peer")})
	says := func(at time.Duration, level slog.Level, text string) {
		if err := gobgp.Handle(t.Context(), slog.NewRecord(dawn.Add(at), level, text, 0)); err != nil {
			t.Fatal(err)
		}
	}
	says(0, slog.LevelInfo, "Can't find configuration for a new passive connection")
	says(0, slog.LevelWarn, "Closed an accepted connection")
	for i := range 100 {
		says(time.Duration(i)*20*time.Millisecond, slog.LevelWarn, "Session will be reset due to malformed BGP message")
	}
	says(0, slog.LevelError, "code logic bug")
	if got, want := strings.Count(out.String(), "\n"), 3; got != want {
		t.Errorf("%d lines, want %d, the second warning once a second and the error:\n%s", got, want, out)
	}
	for _, want := range []string{
		"level=WARN msg=\"gobgp: Session will be reset",
		"level=ERROR msg=\"gobgp: code logic bug\" Topic=Peer",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
}

func TestAListenerThatHasGivenUpIsAnErrorOfSetPeers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	sp := s.speaker(t, 65000, 0, usualPace)
	sp.set(t)
	slog.New(sp.tap).Warn("Failed to AcceptTCP", "Error", "too many open files")
	if err := sp.SetPeers(nil); err == nil || !strings.Contains(err.Error(), "too many open files") {
		t.Errorf("error is %v, want that a listener has failed", err)
	}
}
