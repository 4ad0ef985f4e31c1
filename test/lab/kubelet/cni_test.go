package kubelet

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// plugin notes how it is called, and fails while the file refuse is there.
const plugin = `#!/bin/sh
cat >>config-seen
echo "$CNI_COMMAND $CNI_IFNAME $CNI_ARGS $([ -e "$CNI_NETNS" ] && echo in its namespace)" >>calls
if [ -e refuse ] && [ "$CNI_COMMAND" = ADD ]; then
	echo '{"cniVersion": "0.3.1", "code": 11, "msg": "no pool", "details": "has room"}'
	exit 1
fi
[ "$CNI_COMMAND" = DEL ] || echo '{"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "172.16.0.5/32"}, {"version": "6", "address": "fd00:172::5/128"}]}'
`

func TestACNIPluginIsCalledAsARuntimeCallsIt(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/plugin", []byte(plugin), 0o700); err != nil { //nolint:gosec // it must be executable
		t.Fatal(err)
	}
	c := &CNI{Plugin: []string{"env", "-C", dir, "./plugin"}, Path: dir, Config: dir + "/conf"}
	a := &agent{Config: Config{
		Node:        "worker1",
		NetnsPrefix: fmt.Sprintf("sp%dc%d", os.Getpid(), time.Now().UnixNano()%1e6),
		Log:         slog.New(slog.DiscardHandler),
	}, laying: make(chan struct{}, 1)}
	p := newPod(a, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "one"}})
	t.Cleanup(func() { c.cut(p) })
	there := func() bool { _, err := os.Stat(filepath.Join(netnsDir, p.wire.Netns)); return err == nil }
	calls := func() []string {
		text, err := os.ReadFile(dir + "/calls")
		if err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(dir + "/calls")
		var verbs []string
		for line := range strings.Lines(string(text)) {
			verb, rest, _ := strings.Cut(line, " ")
			for _, want := range []string{
				"eth0 ", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;", "K8S_POD_UID=one",
				"in its namespace",
			} {
				if !strings.Contains(rest, want) {
					t.Errorf("%s: got %q, want %q in it", verb, rest, want)
				}
			}
			verbs = append(verbs, verb)
		}
		return verbs
	}

	if _, err := c.join(t.Context(), p); err == nil || !strings.Contains(err.Error(), "CNI is not configured") {
		t.Errorf("without a configuration: got %v", err)
	}
	if err := c.leave(t.Context(), p); err != nil {
		t.Errorf("a pod that never joined: %v", err)
	}
	if err := os.WriteFile(c.Config, []byte("its configuration"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/refuse", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.join(t.Context(), p); err == nil || err.Error() != "CNI ADD: no pool has room" {
		t.Errorf("got %v, want the plugin's own words", err)
	}
	if got, want := calls(), []string{"ADD", "DEL"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q: what failed is undone", got, want)
	}
	if err := os.Remove(dir + "/refuse"); err != nil {
		t.Fatal(err)
	}
	got, err := c.join(t.Context(), p)
	if want := []netip.Addr{netip.MustParseAddr("172.16.0.5"), netip.MustParseAddr("fd00:172::5")}; err != nil ||
		!slices.Equal(got, want) || !there() {
		t.Errorf("got %v (%v), want %v and a namespace", got, err, want)
	}
	if err := c.leave(t.Context(), p); err != nil || there() {
		t.Errorf("got %v, want no namespace any more", err)
	}
	if got, want := calls(), []string{"ADD", "DEL"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if text, err := os.ReadFile(dir + "/config-seen"); err != nil ||
		!strings.HasPrefix(string(text), "its configuration") {
		t.Errorf("got %q (%v) on standard input", text, err)
	}
}
