package bgp

import (
	"fmt"
	"strings"
	"testing"

	"sallyport/test/wait"
)

// TestACaptureSeesInWhichDirectionPacketsPass lets a BIRD and a Probe dial, with a firewall on one
// side. The firewall of this machine drops what the capture has seen arrive.
func TestACaptureSeesInWhichDirectionPacketsPass(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		here, there string // rules of nft: US and NODE are the addresses
		session     string // of the BIRD
		v6          bool
		probe       Answer
		want        Segments
		signed      string // the password of the BIRD
	}{
		"nothing drops": {
			probe: Open,
			want:  Segments{Sent: true, Answered: true, Dialled: true, Replied: true},
		},
		"nothing drops, IPv6": {
			probe: Open, v6: true,
			want: Segments{Sent: true, Answered: true, Dialled: true, Replied: true},
		},
		"a password": {
			session: `password "correct horse";`, signed: "correct horse", probe: NoAnswer,
			want: Segments{Sent: true, Answered: true, Dialled: true},
		},
		"a password, IPv6": {
			session: `password "correct horse";`, signed: "correct horse", v6: true,
			probe: NoAnswer, want: Segments{Sent: true, Answered: true, Dialled: true},
		},
		"the node lets none in": {
			there: "input: ip saddr US tcp dport 179 drop", probe: NoAnswer,
			want: Segments{Sent: true, Dialled: true, Replied: true},
		},
		"the node lets none out": {
			there: "output: ip daddr US tcp dport 179 drop", probe: Open,
			want: Segments{Sent: true, Answered: true},
		},
		"this end lets none in": {
			here: "input: ip saddr NODE tcp dport 179 drop", probe: Open,
			want: Segments{Sent: true, Answered: true, Dialled: true},
		},
		"this end lets none out": {
			here: "output: ip daddr NODE tcp dport 179 drop", probe: NoAnswer,
			want: Segments{Dialled: true, Replied: true},
		},
		"this end drops answers": {
			here: "input: ip saddr NODE tcp sport 179 drop", probe: NoAnswer,
			want: Segments{Sent: true, Answered: true, Dialled: true, Replied: true},
		},
		"the node rejects by ICMP": {
			there: "input: ip saddr US tcp dport 179 reject with icmp admin-prohibited",
			probe: Unrouted, want: Segments{Sent: true, Dialled: true, Replied: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			variant(t, row.v6)
			t.Parallel()
			s := newSite(t)
			n := s.node(t)
			family := 0
			if row.v6 {
				family = 1
			}
			us, at := s.us[family], n.addr[family]
			table := fmt.Sprintf("capture%d", s.number)
			for rule, run := range map[string]func(*testing.T, string,
				...string){row.here: func(t *testing.T, name string, args ...string) {
				run(t, name, args...)
			}, row.there: n.run} {
				if hook, match, has := strings.Cut(rule, ": "); has {
					match = strings.NewReplacer("US", us.String(), "NODE", at.String()).Replace(match)
					run(t, "nft", fmt.Sprintf("add table inet %s; add chain inet %[1]s %s { type filter hook %[2]s "+
						"priority 0; }; add rule inet %[1]s %[2]s %s", table, hook, match))
				}
			}
			if row.here != "" {
				t.Cleanup(func() { run(t, "nft", "delete table inet "+table) })
			}
			c, err := NewCapture(179)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			n.bird(t, birdConfig{v6: row.v6, us: us, asn: 65000, ours: 65000, session: row.session})
			if row.want.Dialled { // BIRD listens, too
				wait.For(t, "the node dials", func() (bool, string) { return c.Of(at).Dialled, "" })
			}
			var answer Answer
			wait.For(t, "the probe finds "+string(row.probe), func() (bool, string) {
				answer = Probe(t.Context(), Peer{Addr: at, Local: us}).Answer
				return answer == row.probe, string(answer)
			})
			if row.signed != "" {
				for password, want := range map[Secret]Answer{Secret(row.signed): Open, "battery": NoAnswer} {
					if got := Probe(t.Context(), Peer{Addr: at, Local: us, Password: password}).Answer; got != want {
						t.Errorf("with the password %q the probe finds %s, want %s", string(password), got, want)
					}
				}
			}
			got := c.Wait(t.Context(), at)
			if got.Signed() != (row.signed != "") || got.SignedBy(row.signed) != (row.signed != "") ||
				got.SignedBy("battery") {
				t.Errorf("signed %t, by the password %t, by another one %t", got.Signed(), got.SignedBy(row.signed),
					got.SignedBy("battery"))
			}
			passed := func(s Segments) string {
				return fmt.Sprintf("sent %t, answered %t, dialled %t, replied %t", s.Sent, s.Answered, s.Dialled,
					s.Replied)
			}
			if passed(got) != passed(row.want) {
				t.Errorf("got %s, want %s", passed(got), passed(row.want))
			}
		})
	}
}

func FuzzSegment(f *testing.F) {
	f.Add([]byte{
		0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 179, 0, 179, 0, 0, 0, 0, 0, 0, 0,
		0, 0x50, 2, 0, 0, 0, 0, 0, 0,
	})
	f.Add([]byte{0x60, 0, 0, 0, 0, 24, 6, 64})
	f.Fuzz(func(t *testing.T, packet []byte) {
		if s, ok := segmentOf(packet); ok {
			seen := Segments{dial: s}
			if seen.SignedBy("secret") && !seen.Signed() {
				t.Error("a segment without a signature is signed")
			}
		}
	})
}
