package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sallyport/appliance/status"
	"sallyport/test/faults"
	"sallyport/test/lab/world"
)

// A mistake is something wrong with a group, which each member shows in a sentence.
type mistake struct {
	what          string
	make, undo    func(r *testbed)
	first, second string           // among the warnings of each, which the page begins with
	cuts          bool             // the members lose kept connections by it
	doctor        func(r *testbed) // waits until the doctor of the first one finds it; nil if it has no check
}

// by returns the mistake with a look of the doctor.
func (m mistake) by(doctor func(r *testbed)) mistake {
	m.doctor = doctor
	return m
}

// The first member is right in everything, and the second one has the mistake. Clients reach the
// application all the time.
func TestEachMistakeInAGroupIsASentence(t *testing.T) {
	beside(t, long)
	first, a, b, clients := pair(t, "wrong", world.RouterBIRD)
	good := b.read("sallyport.yaml")
	program, err := os.Readlink(b.file("sallyport"))
	first.must(err)
	program = filepath.Join(b.Dir, program)
	const service, away = "203.0.113.10", "192.168.50.31"
	own, second := first.file("sallyport.yaml"), "member "+world.ApplianceHost(2)
	first.finds(own, status.Healthy, second, "192.168.50.12 is full")

	restart := func(change func()) {
		b.end(syscall.SIGTERM)
		change()
		b.start()
	}
	// file is a mistake in the file of the second member.
	file := func(what, first, second string, changes ...string) mistake {
		return mistake{
			what: what, first: first, second: second,
			make: func(*testbed) {
				restart(func() { b.write("sallyport.yaml", strings.NewReplacer(changes...).Replace(good)) })
			},
			undo: func(*testbed) { restart(func() { b.write("sallyport.yaml", good) }) },
		}
	}
	// instead runs the second member by another program.
	instead := func(with func(path string), change ...string) (make, undo func(*testbed)) {
		swap := func(put func(path string), text string) func(*testbed) {
			return func(*testbed) {
				restart(func() {
					b.must(os.Remove(b.file("sallyport")))
					put(b.file("sallyport"))
					b.write("sallyport.yaml", text)
				})
			}
		}
		return swap(with, strings.NewReplacer(change...).Replace(good)),
			swap(func(path string) { b.must(os.Symlink(program, path)) }, good)
	}
	object := func(what, text, sentence string) mistake {
		return mistake{
			what: what, first: sentence, second: sentence,
			make: func(r *testbed) { r.apply(text) },
			undo: func(r *testbed) {
				path := filepath.Join(r.t.TempDir(), "object.yaml")
				r.must(os.WriteFile(path, []byte(text), 0o600))
				r.kubectl("delete", "--wait=false", "-f", path)
			},
		}
	}
	on := func(r *testbed, host string, commands ...string) {
		r.t.Helper()
		for _, c := range commands {
			_, err := r.Exec(r.t.Context(), host, "sh", "-c", c)
			r.must(err)
		}
	}
	noKeepalived := mistake{
		what: "keepalived is missing", first: "VRRP needs the program keepalived",
		second: "VRRP needs the program keepalived: install Debian's package keepalived",
	}
	noKeepalived.make, noKeepalived.undo = instead(func(path string) {
		at, err := exec.LookPath("keepalived")
		b.must(err)
		b.must(os.WriteFile(path,
			fmt.Appendf(nil, "#!/bin/sh\n"+
				"exec unshare --mount sh -c 'mount --bind /dev/null %s && exec %s \"$@\"' sh \"$@\"\n", at, program),
			0o700))
	}, "  upstream:", "  vrrp: {interface: eth0}\n  upstream:")
	update := mistake{what: "another version"}
	update.make, update.undo = instead(func(path string) { b.must(os.WriteFile(path, b.otherProgram(), 0o700)) })

	mute := faults.Filter(first.Rig, world.Router, "input ip saddr 192.168.50.12 udp dport 3784 drop")

	for _, m := range []mistake{
		file("another secret", "Packets of appliance2 at 192.168.50.12 are not signed with the secret of this group: "+
			"compare group.secret on both.",
			"Packets of appliance at 192.168.50.21 are not signed with the secret of this group: compare "+
				"group.secret on both.", "c2FsbHlwb3J0", "YW5vdGhlciBz").by(func(r *testbed) {
			r.finds(own, status.Doubt, second, "not signed with the secret of this group", "sallyport status members")
		}),
		file("another configuration", "appliance2 has another configuration: compare the files",
			"appliance has another configuration: compare the files",
			"172.16.0.0/16", "172.16.0.0/16, 10.99.0.0/16").by(func(r *testbed) {
			r.finds(own, status.Doubt, second, "it has another configuration", "compare the files")
		}),
		update.by(func(r *testbed) {
			r.finds(own, status.Doubt, second, "it runs version "+otherVersion, ", and this one "+version,
				"update one after the other")
		}),
		file("a member that is not in the list",
			"appliance2 does not have appliance in its group.members: add it there.",
			"appliance at 192.168.50.21 has the secret of this group, but is not in group.members: add it on "+
				"every member",
			"{name: appliance, address: 192.168.50.21}", "{name: elsewhere, address: "+away+"}").by(func(r *testbed) {
			r.finds(own, status.Doubt, second, "does not have appliance in its group.members",
				"sallyport status members")
		}),
		file("two members of one name",
			"The appliance at 192.168.50.12 has the name appliance like this one: give each an identity of its own.",
			"The appliance at 192.168.50.21 has the name appliance like this one: give each an identity of its own.",
			"identity: appliance2", "identity: appliance",
			"{name: appliance, address: 192.168.50.21}, {name: appliance2,",
			"{name: elsewhere, address: "+away+"}, {name: appliance,"),
		file("the file of the other member", ": look whether it runs, and whether UDP port 7477 passes between the members",
			"listening for heartbeats as appliance: does this machine have the address that group.members "+
				"gives appliance?", "identity: appliance2", "identity: appliance"),
		object("a node has the address",
			"{apiVersion: v1, kind: Node, metadata: {name: liar, annotations: {projectcalico.org/IPv4Address: "+service+
				"/24}}}",
			"the service address "+service+
				" is also the address of node liar in cluster default, so no route is learned from that node: give the "+
				"group another address"),
		object("a pool has the address",
			"{apiVersion: crd.projectcalico.org/v1, kind: IPPool, metadata: {name: wide}, spec: {cidr: "+
				"203.0.113.0/24, disabled: true, ipipMode: Never, vxlanMode: Never, nodeSelector: all()}}",
			"the service address "+service+
				" is in IP pool wide (203.0.113.0/24) of cluster default, and the pod that gets it is not reached: give "+
				"the group another address"),
		{
			what:  "another machine has the address",
			cuts:  true, // those to that address at the second one
			first: "has the service address " + service + ", so this appliance does not take it",
			second: "has the service address " + service +
				", so this appliance does not take it: give that machine or the group another address",
			make: func(r *testbed) {
				restart(func() {
					on(r, "worker2", "ip address add "+service+"/24 dev eth0")
					on(r, b.Machine(), "ip address add 203.0.113.250/24 dev eth0",
						"ip address del "+service+"/32 dev lo")
				})
			},
			undo: func(r *testbed) {
				on(r, "worker2", "ip address del "+service+"/24 dev eth0")
				restart(func() { on(r, b.Machine(), "ip address del 203.0.113.250/24 dev eth0") })
			},
		},
		file("a router that is a node", "the router 192.168.50.23 is also the address of node worker1 in cluster default",
			"the router 192.168.50.23 is also the address of node worker1 in cluster default, so no route is learned "+
				"from that node: give the router's own address in group.upstream.peers",
			"peers: [{address: 192.168.50.2}]", "peers: [{address: 192.168.50.2}, {address: 192.168.50.23}]"),
		{
			what:   "a router without BFD",
			first:  "BFD with the router 192.168.50.2 is down though its BGP session is established",
			second: "BFD with the router 192.168.50.2 is down though its BGP session is established",
			make:   func(r *testbed) { restart(func() { r.must(mute.Make(t.Context())) }) },
			undo:   func(r *testbed) { r.must(mute.Mend(t.Context())) },
		},
		noKeepalived,
	} {
		first.sub(m.what, func(_ *testing.T, r *testbed) {
			clients.r = r
			shows := func(at member, sentence string) {
				r.eventually(at.Machine()+" shows it", func() error {
					s, err := at.status()
					if err == nil {
						err = missing("its status", strings.Join(s.Warnings, "\n"), sentence)
					}
					return err
				})
			}
			count := clients.during(func() {
				m.make(r)
				shows(b, m.second)
				shows(a, m.first)
				if m.doctor != nil {
					m.doctor(r)
				}
			})
			if m.cuts {
				count.Broken = nil
			}
			clients.noLosses(count)
			m.undo(r)
			if m.doctor != nil {
				r.lacks(own, second)
			}
			for _, at := range []member{a, b} {
				r.eventually(at.Machine()+" has nothing to say", func() error {
					s, err := at.status()
					if err == nil && len(s.Warnings) > 0 {
						err = fmt.Errorf("%q", s.Warnings)
					}
					return err
				})
			}
			r.spread(a, b)
		})
	}
}

// otherProgram returns the program under test with another version. The linker has written the
// version into the program, and this one has the same length.
func (r *testbed) otherProgram() []byte {
	r.t.Helper()
	program, err := os.ReadFile(filepath.Join(programs, "sallyport"))
	r.must(err)
	if !bytes.Contains(program, []byte(version)) {
		r.t.Fatalf("the program does not have the version %s", version)
	}
	return bytes.ReplaceAll(program, []byte(version), []byte(otherVersion))
}
