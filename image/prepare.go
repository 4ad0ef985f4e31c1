package image

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/appliance/config"
	"sallyport/image/update"
)

// lastGood is what the file is called that was kept.
const lastGood = "the last good file"

// defaultName is the name of a machine that was given none.
const defaultName = "sallyport"

// Prepare finds the file and makes the machine of it. It returns what became of
// the file; its error is what leaves the machine without its firewall.
func (m Machine) Prepare(ctx context.Context) (State, error) {
	// At a start the boot disk may have lost its file on purpose; what the last good
	// file says of volumes holds on.
	closed := ""
	if kept, err := m.kept(); err == nil {
		if cfg, err := accept(kept.data); err == nil {
			closed = closedBy(cfg)
		}
	}
	return m.make(ctx, m.look(ctx, closed))
}

// closedBy returns why a machine with this file reads no volume but the boot disk's,
// or nothing.
func closedBy(cfg *config.Config) string {
	if cfg.System.Volumes == config.BootVolume {
		return "system.volumes is boot"
	}
	return ""
}

// make makes the machine of what was looked up.
func (m Machine) make(ctx context.Context, l looked) (State, error) {
	err := m.place(files(l.config, l.data))
	if err == nil {
		err = m.start(ctx, "", "nft", "-f", m.path(wallFile))
	}
	if m.Root == "" {
		err = errors.Join(err, unix.Sethostname([]byte(l.state.Hostname)), m.limitBacklogs())
	}
	if err != nil {
		l.state.Notices = append(l.state.Notices, fmt.Sprintf("the machine could not be made of the file: %v", err))
	}
	return l.state, errors.Join(err, m.tell(l.state))
}

// looked is what the sources and the state partition had.
type looked struct {
	state  State
	config *config.Config // nil: none that is accepted
	data   []byte         // its text
}

// look finds the file that is to be used, and keeps it. A reason in closed keeps it
// from foreign volumes.
func (m Machine) look(ctx context.Context, closed string) looked {
	var l looked
	s := &l.state
	s.Notices = m.openState()
	file, notices := m.find(ctx, closed)
	s.Notices = append(s.Notices, notices...)
	if file != nil {
		s.Seen = file.mark()
		cfg, err := accept(file.data)
		if err != nil {
			s.Refused = &Refusal{file.source, strings.Split(err.Error(), "\n")}
		} else {
			l.config, l.data, s.Source = cfg, file.data, file.source
			if err := m.keep(*file); err != nil {
				s.Notices = append(s.Notices, fmt.Sprintf("the file is used, but could not be kept: %v", err))
			}
		}
	}
	if l.config == nil {
		switch kept, err := m.kept(); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			s.Notices = append(s.Notices, fmt.Sprintf("the last good file cannot be read: %v", err))
		default:
			cfg, err := accept(kept.data)
			if err == nil {
				l.config, l.data, s.Source = cfg, kept.data, "the last good file, "+kept.source
			} else if s.Refused == nil {
				s.Refused = &Refusal{lastGood + ", " + kept.source, strings.Split(err.Error(), "\n")}
			}
		}
	}
	s.Hostname, s.Status = defaultName, netip.AddrPortFrom(netip.IPv6Unspecified(), StatusPort)
	if l.config != nil {
		s.Closed = closedBy(l.config)
		if s.Closed == "" && strings.HasSuffix(s.Source, bootEnd) {
			s.Closed = "the file in use is from the boot disk"
		}
		s.Hostname, s.Status = cmp.Or(l.config.System.Hostname, defaultName), l.config.Status.Listen
	}
	return l
}

// machinePorts are the ports at which programs of this machine listen, or may
// with another file: sshd, the resolver, and the clients of DHCP.
var machinePorts = []uint16{22, 53, 68, 546}

// accept checks the file: all mistakes are in the error, a line each.
func accept(data []byte) (*config.Config, error) {
	cfg, err := config.Parse("sallyport.yaml", data)
	if err != nil {
		return nil, err
	}
	var errs []error
	refuse := func(key, why string) { errs = append(errs, fmt.Errorf("sallyport.yaml: %s: %s", key, why)) }
	for i, c := range cfg.Clusters {
		at := fmt.Sprintf("clusters[%d]", i)
		if c.Kubeconfig.Path != "" {
			refuse(at+".kubeconfig", "is a path, and this machine has no other file; put the kubeconfig itself there")
		}
		if c.BGP.PasswordFile != "" {
			refuse(at+".bgp.passwordFile", "is a path, and this machine has no other file; use password")
		}
	}
	h := cfg.HAProxy
	for key, given := range map[string]bool{
		"haproxy.mode":   h.Mode != config.Managed,
		"haproxy.binary": h.Binary != "/usr/sbin/haproxy",
		"haproxy.dir":    h.Dir != "/var/lib/sallyport/haproxy",
		"haproxy.runDir": h.RunDir != "/run/sallyport",
		"haproxy.user":   h.User != "" && h.User != "haproxy",
		"haproxy.group":  h.Group != "" && h.Group != "haproxy",
		"haproxy.base":   h.Base != "",
		"stateDir":       cfg.StateDir != stateDir,
	} {
		if given {
			refuse(key, "is not for the image to choose; leave it out")
		}
	}
	for _, port := range machinePorts {
		if !slices.Contains(h.ReservedPorts, port) {
			refuse("haproxy.reservedPorts", fmt.Sprintf("needs %d, a port of this machine's own; it has at least %v", port, machinePorts))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return cfg, nil
}

// files are all the files that a machine with this file has, or one with none.
func files(cfg *config.Config, data []byte) map[string]file {
	var s config.System
	if cfg != nil {
		s = cfg.System
	} else {
		s.Console, s.Update.Kexec = true, true
		s.DHCP = config.DHCP{UseDNS: true, UseNTP: true, UseRA: true}
	}
	all := networkFiles(s)
	text := func(name string, lines ...string) { all[name] = file{0o644, strings.Join(lines, "\n") + "\n"} }
	text("/etc/hostname", cmp.Or(s.Hostname, defaultName))
	text(wallFile, strings.TrimSuffix(firewall(cfg), "\n"))
	if cfg != nil {
		all[configFile] = file{0o600, string(data)}
	}
	if len(s.DNS) > 0 {
		text("/run/systemd/resolved.conf.d/"+ours+"dns.conf", "[Resolve]", "DNS="+join(s.DNS))
	}
	if len(s.NTP) > 0 {
		text("/run/systemd/timesyncd.conf.d/"+ours+"ntp.conf", "[Time]", "NTP="+strings.Join(s.NTP, " "))
	}
	if s.Syslog.IsValid() {
		text("/run/systemd/netlogd.conf.d/"+ours+"syslog.conf", "[Network]", "Address="+s.Syslog.String(), "Protocol=udp", "LogFormat=rfc5424")
	}
	if len(s.MaintenanceKey) > 0 {
		text(keysFile, s.MaintenanceKey...)
	}
	text(agentFile, agent(s)...)
	if !s.Console {
		text(dumbFile, "")
	}
	if !s.Update.Kexec {
		text(update.NoKexecFile, "")
	}
	if s.Update.URL != "" {
		text(update.URLFile, s.Update.URL)
		text("/run/systemd/system/sallyport-update.timer",
			"[Unit]", "Description=Look for a newer version", "",
			"[Timer]", "OnCalendar="+calendar(s.Update.Schedule), "RandomizedDelaySec=10m", "AccuracySec=1m")
	}
	return all
}

// agent returns the configuration of QEMU's guest agent (qemu-ga(8)). The list of
// what it does is closed, so that a newer agent does no more.
func agent(s config.System) []string {
	if s.GuestExec {
		return []string{"[general]"}
	}
	return []string{"[general]", "allow-rpcs=" + strings.Join([]string{
		"guest-sync", "guest-sync-delimited", "guest-ping", "guest-info", "guest-shutdown",
		"guest-get-host-name", "guest-get-osinfo", "guest-get-time", "guest-get-timezone",
		"guest-network-get-interfaces", "guest-get-fsinfo", "guest-get-load",
		"guest-fsfreeze-status", "guest-fsfreeze-freeze", "guest-fsfreeze-thaw", "guest-fstrim",
	}, ",")}
}

// calendar is the schedule as systemd.time(7) has it.
func calendar(schedule string) string {
	if day, at, ok := strings.Cut(schedule, " "); ok {
		return day + " *-*-* " + at
	}
	return "*-*-* " + schedule
}

func join(addrs []netip.Addr) string {
	var words []string
	for _, a := range addrs {
		words = append(words, a.String())
	}
	return strings.Join(words, " ")
}

// place writes the files, and removes those of ours that are none of them.
func (m Machine) place(files map[string]file) error {
	var errs []error
	for _, pattern := range []string{networkDir + "*-sallyport-*", "/run/systemd/*.conf.d/" + ours + "*", "/run/systemd/system/sallyport-update.timer"} {
		have, err := filepath.Glob(m.path(pattern))
		errs = append(errs, err)
		for _, path := range have {
			if _, wanted := files["/"+strings.TrimPrefix(strings.TrimPrefix(path, m.Root), "/")]; !wanted {
				errs = append(errs, os.Remove(path))
			}
		}
	}
	for _, name := range []string{configFile, keysFile, dumbFile, update.URLFile, update.NoKexecFile} {
		if _, wanted := files[name]; !wanted {
			if err := os.Remove(m.path(name)); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := m.write(name, files[name]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// keptMark is how the kept file begins: the line says where it came from.
const keptMark = "# from "

// keep puts the file where the next boot finds it. One that is there already is
// not written again.
func (m Machine) keep(f found) error {
	if have, err := m.kept(); err == nil && have.source == "from "+f.source && bytes.Equal(have.data, f.data) {
		return nil
	}
	if err := os.MkdirAll(m.path(keptDir), 0o700); err != nil {
		return err
	}
	return m.write(keptFile, file{0o600, keptMark + f.source + "\n" + string(f.data)})
}

// kept is the last good file.
func (m Machine) kept() (found, error) {
	data, err := readRegular(m.path(keptFile), maxFile+1<<10)
	if err != nil {
		return found{}, err
	}
	first, rest, ok := strings.Cut(string(data), "\n")
	if !ok || !strings.HasPrefix(first, keptMark) {
		return found{}, errors.New("it does not begin with where it came from")
	}
	source := strings.TrimPrefix(first, "# ")
	return found{source, source, []byte(rest)}, nil
}

// openState sees to it that the state directory can be written, at least in
// memory, and tells what is wrong with it.
func (m Machine) openState() []string {
	dir := m.path(stateDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return []string{fmt.Sprintf("the state directory cannot be made: %v", err)}
	}
	var root, state unix.Stat_t
	if errors.Join(unix.Stat(m.path("/"), &root), unix.Stat(dir, &state)) == nil && root.Dev == state.Dev {
		return []string{"there is no state partition (sallyport-state): what is learned is in memory, and lost at a reboot"}
	}
	var fsKind unix.Statfs_t
	if err := unix.Statfs(dir, &fsKind); err == nil && fsKind.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return []string{"the state partition could not be written when this machine started: what is learned since is in memory, and lost at a reboot"}
	}
	err := tryWrite(dir)
	if err == nil {
		return nil
	}
	notice := fmt.Sprintf("the state partition cannot be written (%v): what is learned is in memory, and lost at a reboot", err)
	upper, work := m.path(runDir+"/state/upper"), m.path(runDir+"/state/work")
	err = errors.Join(os.MkdirAll(upper, 0o700), os.MkdirAll(work, 0o700))
	if err == nil {
		err = unix.Mount("overlay", dir, "overlay", unix.MS_NOSUID|unix.MS_NODEV, "lowerdir="+dir+",upperdir="+upper+",workdir="+work)
	}
	if err != nil {
		notice += fmt.Sprintf("; nor can memory be put over it: %v", err)
	}
	return []string{notice}
}

// tryWrite writes as much as the files of a small cluster need.
func tryWrite(dir string) error {
	f, err := os.CreateTemp(dir, ".try-*")
	if err != nil {
		return reason(err)
	}
	_, err = f.Write(make([]byte, 1<<20))
	err = errors.Join(err, f.Sync())
	return reason(errors.Join(err, f.Close(), os.Remove(f.Name())))
}

// reason is an error without the path that only this program knows.
func reason(err error) error {
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

// lookEvery is how often Watch looks. A stick that is put in is found as soon.
const lookEvery = 30 * time.Second

// Watch looks again and again whether a source has another file, and makes the
// machine of that, until ctx ends. What it does it says to say.
//
// Two things happen here: the time to look comes, or the end.
func (m Machine) Watch(ctx context.Context, say func(string)) error {
	if _, err := os.Stat(m.path(update.URLFile)); err == nil {
		// Prepare runs before systemd can be asked to read a unit.
		if err := m.timer(ctx); err != nil {
			say(err.Error())
		}
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := m.again(ctx, say); err != nil {
			say(err.Error())
		}
	}
}

// again looks once. A source that has nothing any more changes nothing: a stick
// may be pulled.
func (m Machine) again(ctx context.Context, say func(string)) error {
	before, err := m.State()
	if err != nil {
		return err
	}
	file, notices := m.find(ctx, before.Closed)
	if file == nil || file.mark() == before.Seen {
		now := before
		now.Notices = slices.Concat(m.openState(), notices, m.pains())
		if !slices.Equal(now.Notices, before.Notices) {
			for _, n := range now.Notices {
				if !slices.Contains(before.Notices, n) {
					say(n)
				}
			}
			return m.tell(now)
		}
		return nil
	}
	l := m.look(ctx, before.Closed)
	if l.state.Refused != nil {
		// What is in use stays, if anything is: it may never have been kept.
		now := before
		now.Refused, now.Seen = l.state.Refused, l.state.Seen
		for _, text := range now.Lines() {
			say(text)
		}
		return m.tell(now)
	}
	s, err := m.make(ctx, l)
	if err != nil {
		return err
	}
	say("the file from " + s.Source + " is used from now on")
	return m.enliven(ctx)
}

// enliven lets the services see what was written. A unit whose condition does not
// hold any more stops and is not started.
func (m Machine) enliven(ctx context.Context) error {
	return errors.Join(
		m.start(ctx, "", "networkctl", "reload"),
		m.start(ctx, "", "systemctl", "--no-block", "try-restart", "systemd-resolved.service", "systemd-timesyncd.service", "qemu-guest-agent.service"),
		m.start(ctx, "", "systemctl", "--no-block", "restart", "sallyport.service", "sallyport-wait.service", "sallyport-ssh.service",
			"systemd-netlogd.service", "sallyport-screen@tty1.service", "sallyport-screen@ttyS0.service"),
		m.timer(ctx),
	)
}

// timer starts the timer of updates, if there is one, or ends it.
func (m Machine) timer(ctx context.Context) error {
	verb := "restart"
	if _, err := os.Stat(m.path(update.URLFile)); err != nil {
		verb = "stop"
	}
	if err := m.start(ctx, "", "systemctl", "daemon-reload"); err != nil {
		return err
	}
	return m.start(ctx, "", "systemctl", "--no-block", verb, "sallyport-update.timer")
}

// pains are what a machine suffers from that only time shows.
func (m Machine) pains() (notices []string) {
	var up unix.Sysinfo_t
	_ = unix.Sysinfo(&up)
	if _, err := os.Stat(m.path("/run/systemd/timesync/synchronized")); err != nil && up.Uptime > 120 {
		notices = append(notices, "no time server has answered (system.ntp): if the clock is wrong, certificates look invalid")
	}
	addrs, err := net.InterfaceAddrs()
	if err == nil && !slices.ContainsFunc(addrs, func(a net.Addr) bool {
		ip, ok := a.(*net.IPNet)
		return ok && ip.IP.IsGlobalUnicast()
	}) {
		notices = append(notices, "no interface has an address: no link, or no DHCP server answers")
	}
	return notices
}
