package address

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// VRRPOptions says which addresses VRRP moves between which appliances.
type VRRPOptions struct {
	Folder    string        // of keepalived's files, used by nothing else
	Interface string        // that gets the addresses, in the network of the members
	ID        int           // first of the virtual router IDs, 1 to 255
	Interval  time.Duration // between advertisements; 0 means 300 ms
	Addresses []netip.Addr  // of the group
	Not       []netip.Addr  // of these, that this appliance must not take, nor the others that move together with them
	Services  []netip.Addr  // further addresses, at the start: see Serve
	Self      netip.Addr    // of this appliance among the members
	Members   []netip.Addr  // all, in the order of the configuration, which is the same on each
	// Unit is the unit of systemd that runs keepalived with the rights that it needs. If it is
	// empty, keepalived is a child of this process.
	Unit string
	Log  *slog.Logger // nil if nothing is logged
}

// VRRP gives each address to one appliance where no router chooses an appliance: it writes the
// files of keepalived(8), and runs it. The addresses are spread: the first address belongs to the
// first member, the second to the second member, and so on. If a member is missing, the next member
// takes its addresses.
//
// keepalived is a child of this process and ends with it, so a fresh process finds no keepalived of
// ours. Or a unit of systemd runs keepalived. Then it goes on with its priority while the process
// restarts, and also after a crash. A fresh process finds this keepalived by its pid file. If the
// configuration is the same, the process adopts it; otherwise the process starts the unit anew. If
// a keepalived is killed, the next keepalived removes its addresses from the interface.
type VRRP struct {
	o       VRRPOptions
	program string
	shares  []share
	places  int                    // shares of all members together
	adopted bool                   // an earlier process has started the unit
	leaves  atomic.Bool            // the priority is one that gives the addresses away
	ended   atomic.Pointer[string] // the last line of a keepalived that ended; nil while keepalived runs
}

// A share is the addresses that move together: a virtual router.
type share struct {
	id       int
	place    int          // among all shares
	priority int          // of this appliance
	main     []netip.Addr // of the members' family
	other    []netip.Addr
}

const (
	highest = 254 // keepalived's 255 ignores a Priority
	// calm is how long keepalived has to run until the next restart is at once again.
	calm    = time.Minute
	slowest = 10 * time.Second // between two restarts
	ending  = 5 * time.Second  // for keepalived to give the addresses back
)

// Priority is added to the priority of this appliance for each address.
type Priority int

// The four priorities of an appliance.
const (
	Normal Priority = 0
	Lower  Priority = -100 // the others take the addresses if their priority is Normal
	// Lowest makes the priority of each address 1: the appliance serves until somebody else
	// does, and if nobody else is there.
	Lowest Priority = -253
	// Released makes the priority of each address 0. keepalived gives up all addresses at once,
	// before another appliance has taken them.
	Released Priority = -254
)

// NewVRRP writes the files, with the priority Released, and has keepalived check them. A unit that
// runs with the same files keeps its priority. Run does the rest.
func NewVRRP(o VRRPOptions) (*VRRP, error) {
	o.Interval = cmp.Or(o.Interval, 300*time.Millisecond)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Services = slices.SortedFunc(slices.Values(o.Services), netip.Addr.Compare)
	v := &VRRP{o: o}
	var err error
	if v.program, err = exec.LookPath("keepalived"); err != nil {
		return nil,
			fmt.Errorf("VRRP needs the program keepalived: install Debian's package keepalived, whose own service "+
				"stays off: %w", err)
	}
	if v.shares, err = o.spread(); err != nil {
		return nil, err
	}
	v.places = len(v.shares)
	// A keepalived rejects the advertisements of one with fewer addresses, and then both have
	// the rest.
	v.shares = slices.DeleteFunc(v.shares, func(s share) bool {
		return slices.ContainsFunc(o.Not, func(a netip.Addr) bool {
			return slices.Contains(s.main, a) || slices.Contains(s.other, a)
		})
	})
	if len(v.shares) == 0 {
		return nil, errors.New("VRRP has no address to move: each moves together with one that another machine has")
	}
	text := v.text()
	if has, err := os.ReadFile(v.file("keepalived.conf")); err == nil && o.Unit != "" && string(has) == text &&
		v.pid("vrrp.pid") != 0 {
		v.adopted = true
		return v, nil
	}
	if err := os.MkdirAll(o.Folder, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of keepalived's files: %w", err)
	}
	if err := v.Set(Released); err != nil {
		return nil, err
	}
	if err := v.write("keepalived.conf", text); err != nil {
		return nil, err
	}
	out, err := exec.Command(v.program, "--use-file", v.file("keepalived.conf"), "--vrrp",
		"--config-test").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("keepalived rejects its configuration, %s: %w: %s", v.file("keepalived.conf"), err,
			strings.TrimSpace(string(out)))
	}
	return v, nil
}

// spread distributes the addresses of the members' family over as many shares as there are members.
// Addresses of the other family join these shares: VRRP between IPv4 addresses has to carry an IPv4
// address, and VRRP between IPv6 addresses an IPv6 address.
func (o VRRPOptions) spread() ([]share, error) {
	if o.Interface == "" || strings.ContainsFunc(o.Interface, func(c rune) bool {
		return c <= ' ' || c > '~' || strings.ContainsRune(`"'#!{}$@~\`, c)
	}) {
		return nil, fmt.Errorf("VRRP on the interface %q: it needs a name without spaces and special characters",
			o.Interface)
	}
	if o.Interval < 10*time.Millisecond || o.Interval > 40*time.Second {
		return nil, fmt.Errorf("VRRP with an interval of %v: it must be 10ms to 40s", o.Interval)
	}
	place := slices.Index(o.Members, o.Self)
	if place < 0 || len(o.Members) > largest {
		return nil, fmt.Errorf("VRRP between %d members: it needs this one, %s, and at most %d", len(o.Members), o.Self,
			largest)
	}
	var main, other []netip.Addr
	for _, a := range o.Addresses {
		if a.Is4() == o.Self.Is4() {
			main = append(main, a)
		} else {
			other = append(other, a)
		}
	}
	if len(main) == 0 {
		return nil,
			fmt.Errorf("VRRP between members like %s has no address of the same family to move: give the group one, "+
				"or the members addresses of the other family", o.Self)
	}
	shares := make([]share, min(len(main), len(o.Members)))
	if o.ID < 1 || o.ID+len(shares)-1 > 255 {
		return nil,
			fmt.Errorf(
				"VRRP with the IDs from %d to %d, one for each member that gets addresses: they must be 1 to 255", o.ID,
				o.ID+len(shares)-1)
	}
	for i := range shares {
		rank := (place - i + len(o.Members)) % len(o.Members)
		shares[i] = share{id: o.ID + i, place: i, priority: highest - rank}
	}
	for i, a := range main {
		s := &shares[i%len(shares)]
		s.main = append(s.main, a)
	}
	for i, a := range other {
		s := &shares[i%len(shares)]
		s.other = append(s.other, a)
	}
	return shares, nil
}

func (v *VRRP) file(name string) string { return filepath.Join(v.o.Folder, name) }

// text returns keepalived.conf(5).
func (v *VRRP) text() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("global_defs {")
	line("\trouter_id sallyport")
	line("\tvrrp_version 3")
	// After two were master, clients have to learn again who it is. The one that yields
	// says so, and the master repeats itself.
	line("\tvrrp_higher_prio_send_advert true")
	line("\tvrrp_garp_master_delay 1")
	line("\tvrrp_garp_master_refresh 5")
	line("\tvrrp_garp_lower_prio_repeat 1")
	line("\tvrrp_garp_lower_prio_delay 1")
	line("}")
	line("track_file class {")
	line("\tfile %q", v.file("class"))
	line("\tweight 1")
	line("\tinit_file %d", Released)
	line("}")
	for _, s := range v.shares {
		line("vrrp_instance share_%d {", s.id)
		line("\tstate BACKUP")
		line("\tinterface %s", v.o.Interface)
		line("\tvirtual_router_id %d", s.id)
		line("\tpriority %d", s.priority)
		line("\tadvert_int %g", v.o.Interval.Seconds())
		if len(v.o.Members) > 1 { // keepalived has no unicast without a peer
			line("\tunicast_src_ip %s", v.o.Self)
			line("\tunicast_peer {")
			for _, m := range v.o.Members {
				if m != v.o.Self {
					// A TTL of 255 proves that the sender is on the link. With these limits of the
					// TTL, keepalived also compares the source.
					line("\t\t%s min_ttl 255 max_ttl 255", m)
				}
			}
			line("\t}")
		}
		line("\ttrack_file {\n\t\tclass\n\t}")
		// The share of an address depends only on the address: if other addresses come or go, it
		// stays where it is.
		more := slices.DeleteFunc(slices.Clone(v.o.Services), func(a netip.Addr) bool {
			return placeOf(a, v.places) != s.place
		})
		for i, addresses := range [][]netip.Addr{s.main, slices.Concat(s.other, more)} {
			if len(addresses) == 0 {
				continue
			}
			line("\t%s {", []string{"virtual_ipaddress", "virtual_ipaddress_excluded"}[i])
			for _, a := range addresses {
				line("\t\t%s/%d dev %s", a, a.BitLen(), v.o.Interface)
			}
			line("\t}")
		}
		line("}")
	}
	return b.String()
}

// placeOf returns the place of an address among a number of shares. Neighbouring addresses have
// different places.
func placeOf(a netip.Addr, places int) int {
	sum := 0
	for _, b := range a.AsSlice() {
		sum += int(b)
	}
	return sum % places
}

// Serve replaces the further addresses that VRRP moves, those of Services. Each moves together with
// a share. keepalived reads its file again; the other addresses stay where they are.
//
// keepalived does not advertise further addresses: members with different further addresses accept
// each other.
func (v *VRRP) Serve(addresses []netip.Addr) error {
	addresses = slices.SortedFunc(slices.Values(addresses), netip.Addr.Compare)
	if slices.Equal(addresses, v.o.Services) {
		return nil
	}
	before := v.o.Services
	v.o.Services = addresses
	if err := v.write("keepalived.conf", v.text()); err != nil {
		v.o.Services = before
		return err
	}
	// One that does not run reads the file when it starts.
	if pid := v.pid("keepalived.pid"); pid != 0 {
		if err := syscall.Kill(pid, unix.SIGHUP); err != nil && !errors.Is(err, unix.ESRCH) {
			v.o.Services = before
			return fmt.Errorf("making keepalived read its file again: %w", err)
		}
	}
	return nil
}

// Set sets the priority of this appliance. keepalived follows the file at once.
func (v *VRRP) Set(p Priority) error {
	v.leaves.Store(p <= Lowest)
	return v.write("class", fmt.Sprintln(int(p)))
}

// write replaces a file in one step. keepalived never reads half of it. The file need not survive a
// crash of the machine: a machine that starts writes all of them anew.
func (v *VRRP) write(name, text string) error {
	scratch := v.file("." + name)
	err := os.WriteFile(scratch, []byte(text), 0o600)
	if err == nil {
		err = os.Rename(scratch, v.file(name))
	}
	if err != nil {
		return fmt.Errorf("writing keepalived's file %s: %w", v.file(name), err)
	}
	return nil
}

// Cut reports whether the interface has no carrier: the cable is out, or nobody is at its other
// end. keepalived gives up all addresses then, and takes those of its priority back soon after.
func (v *VRRP) Cut() bool {
	link, err := netlink.LinkByName(v.o.Interface)
	return err == nil && link.Attrs().RawFlags&unix.IFF_RUNNING == 0
}

// Held returns the addresses that this appliance has by VRRP now. It is an error if
// keepalived has ended and did not come up again.
func (v *VRRP) Held() (held []netip.Addr, err error) {
	link, err := netlink.LinkByName(v.o.Interface)
	if err != nil {
		return nil, fmt.Errorf("looking for the interface %s: %w", v.o.Interface, err)
	}
	there, err := read(link.Attrs().Index)
	if err != nil {
		return nil, err
	}
	for _, a := range slices.Concat(v.o.Addresses, v.o.Services) {
		if _, ok := there[netip.PrefixFrom(a, a.BitLen())]; ok {
			held = append(held, a)
		}
	}
	if why := v.ended.Load(); why != nil {
		hint := ""
		if strings.Contains(*why, "permission") {
			hint = "; it needs CAP_NET_ADMIN, CAP_NET_RAW and sockets of AF_PACKET: give them to the service"
		}
		return held, fmt.Errorf("VRRP stands still, since keepalived ended: %s%s", *why, hint)
	}
	return held, nil
}

// Run runs keepalived until ctx ends, and starts it again whenever it ends: at once, and
// with growing pauses if it ends soon. Then keepalived gives the addresses back; one that a
// unit runs goes on, unless its priority is Lowest or Released.
func (v *VRRP) Run(ctx context.Context) {
	if v.o.Unit != "" {
		v.unit(ctx)
		return
	}
	runtime.LockOSThread() // Pdeathsig is the death of the thread
	defer runtime.UnlockOSThread()
	var pause time.Duration
	for ctx.Err() == nil {
		began := time.Now()
		last, err := v.keepalived(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > calm {
			pause = 0
		}
		v.ended.Store(&last)
		v.o.Log.Error("keepalived ended, and starts again", "error", err, "last", last, "pause", pause)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(slowest, max(100*time.Millisecond, 2*pause))
	}
}

// unit has systemd run keepalived.
func (v *VRRP) unit(ctx context.Context) {
	defer func() {
		if !v.leaves.Load() {
			return
		}
		if err := StopUnit(context.WithoutCancel(ctx), v.o.Unit); err != nil {
			v.o.Log.Error("keepalived may still run, with the addresses of the group", "error", err)
		}
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for started := v.adopted; ; {
		var why string
		if !started {
			if err := systemctl(ctx, v.o.Unit, "restart"); err != nil {
				why = err.Error()
			} else {
				started = true
			}
		} else if v.pid("vrrp.pid") == 0 {
			why = "systemctl status " + v.o.Unit
			started, v.adopted = !v.adopted, false // the stop by an earlier process came late
		}
		switch was := v.ended.Load(); {
		case why == "":
			v.ended.Store(nil)
		case was == nil || *was != why:
			v.ended.Store(&why)
			v.o.Log.Error("keepalived does not run", "why", why)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// StopUnit has systemd end the keepalived of a unit, which an earlier process may have left.
func StopUnit(ctx context.Context, unit string) error {
	ctx, cancel := context.WithTimeout(ctx, ending)
	defer cancel()
	return systemctl(ctx, unit, "stop", "--no-block") // while this process is stopped, systemd stops the unit after it
}

func systemctl(ctx context.Context, unit string, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", append(args, unit)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s %s: %w: %s", args[0], unit, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// pid returns the process in a pid file of keepalived, or 0 if that process does not run.
func (v *VRRP) pid(file string) int {
	text, err := os.ReadFile(v.file(file))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return 0
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || strings.TrimSpace(string(name)) != "keepalived" {
		return 0
	}
	return pid
}

// keepalived runs the program once, and returns its last line.
func (v *VRRP) keepalived(ctx context.Context) (last string, err error) {
	cmd := exec.CommandContext(ctx, v.program, "--use-file", v.file("keepalived.conf"), "--vrrp", "--dont-fork",
		"--dont-respawn",
		"--log-console", "--no-syslog", "--pid", v.file("keepalived.pid"), "--vrrp_pid", v.file("vrrp.pid"))
	// keepalived exits if a pid file names a living process, and a number may live again
	// after a crash. It would be another process: ours ended with its parent.
	for _, name := range []string{"keepalived.pid", "vrrp.pid"} {
		if err := os.Remove(v.file(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = ending
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return "", err
	}
	last = v.follow(out)
	return last, cmd.Wait()
}

// follow logs each line of out, and returns the last line.
func (v *VRRP) follow(out io.Reader) (last string) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		// "Mon Nov 23 02:00:00 2026: (share_50) Entering MASTER STATE"
		line := lines.Text()
		if _, text, ok := strings.Cut(line, ": "); ok {
			line = text
		}
		v.o.Log.Debug("keepalived", "line", line)
		switch {
		case strings.Contains(line, " STATE"): // an instance runs
			v.ended.Store(nil)
		case !strings.HasPrefix(line, "Stopp"): // it ends with why it stopped, and that it did
			last = line
		}
	}
	return last
}
