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
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/appliance/config"
	"sallyport/image/update"
)

// lastGood names the last accepted file, as a source.
const lastGood = "the last good file"

// defaultName is the host name if the file does not name the machine.
const defaultName = "sallyport"

// Prepare finds the file and configures the machine by it. A bad file is no error
// but part of the State. After an error the machine may have no firewall.
func (m Machine) Prepare(ctx context.Context) (State, error) {
	// Somebody may have removed the boot disk's file on purpose. system.volumes of the
	// last good file still applies.
	closed := ""
	if kept, err := m.kept(); err == nil {
		if cfg, err := accept(kept.data); err == nil {
			closed = closedBy(cfg)
		}
	}
	return m.make(ctx, m.look(ctx, closed))
}

// closedBy returns why a machine with this file reads only the boot disk's volume, or "" if it
// reads all volumes.
func closedBy(cfg *config.Config) string {
	if cfg.System.Volumes == config.BootVolume {
		return "system.volumes is boot"
	}
	return ""
}

// make configures the machine by the result of look.
func (m Machine) make(ctx context.Context, l looked) (State, error) {
	err := m.place(files(l.config, l.data))
	if err == nil {
		err = m.start(ctx, "", "nft", "-f", m.path(wallFile))
	}
	if m.Root == "" {
		err = errors.Join(err, unix.Sethostname([]byte(l.state.Hostname)), m.limitBacklogs())
	}
	if err != nil {
		l.state.Notices = append(l.state.Notices, fmt.Sprintf("the file could not be applied to this machine: %v", err))
	}
	return l.state, errors.Join(err, m.tell(l.state))
}

// looked is the result of look.
type looked struct {
	state  State
	config *config.Config // nil if no file was accepted
	data   []byte         // its text
}

// look finds the file to use, and keeps a copy for the next start. With a reason in
// closed it reads no volume but the boot disk's.
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
				s.Notices = append(s.Notices, fmt.Sprintf("the file is used, but could not be saved: %v", err))
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
	s.Hostname, s.Status = defaultName, fmt.Sprintf("http://127.0.0.1:%d", StatusPort)
	if l.config != nil {
		s.Closed = closedBy(l.config)
		if s.Closed == "" && strings.HasSuffix(s.Source, bootEnd) {
			s.Closed = "the file in use is from the boot disk"
		}
		s.Hostname = cmp.Or(l.config.System.Hostname, defaultName)
		s.Status, s.Control = l.config.Status.URL(), l.config.ControlSocket()
	}
	return l
}

// machinePorts lists the ports of sshd, the resolver and the DHCP clients. They listen
// on this machine, or would with another file.
var machinePorts = []uint16{config.SSHPort, 53, 68, 546}

// accept parses and checks the file. Its error lists all mistakes, a line each.
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
	for key, path := range map[string]string{
		"certificate": cfg.Status.TLS.Certificate.Path,
		"key":         cfg.Status.TLS.Key.Path,
	} {
		if path != "" {
			refuse("status.tls."+key, "is a path, and this machine has no other file; put the PEM itself there")
		}
	}
	if cfg.Status.PasswordFile != "" {
		refuse("status.passwordFile", "is a path, and this machine has no other file; use password")
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
			refuse(key, "is fixed on the image; leave it out")
		}
	}
	for _, port := range machinePorts {
		if !slices.Contains(h.ReservedPorts, port) {
			refuse("haproxy.reservedPorts",
				fmt.Sprintf("lacks %d, which a program of this machine uses; it needs at least %v", port, machinePorts))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return cfg, nil
}

// files returns all files that a machine with this configuration has, by name. cfg is
// nil for a machine without a file.
func files(cfg *config.Config, data []byte) map[string]file {
	s := cmp.Or(cfg, config.Default()).System
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
		text("/run/systemd/netlogd.conf.d/"+ours+"syslog.conf", "[Network]", "Address="+s.Syslog.String(),
			"Protocol=udp", "LogFormat=rfc5424")
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
	if cfg != nil && cfg.Group.Exists() {
		text(update.StaggerFile, s.Update.Stagger.String())
	}
	if s.Update.URL != "" {
		text(update.URLFile, s.Update.URL)
		text("/run/systemd/system/sallyport-update.timer",
			"[Unit]", "Description=Look for a newer version", "",
			"[Timer]", "OnCalendar="+calendar(s.Update.Schedule), "RandomizedDelaySec=10m", "AccuracySec=1m")
	}
	return all
}

// agent returns the configuration of QEMU's guest agent (qemu-ga(8)). It lists the allowed calls,
// so a newer agent cannot do more.
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

// calendar converts a schedule to systemd.time(7).
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

// place writes the files, and removes files of ours that are not among them.
func (m Machine) place(files map[string]file) error {
	var errs []error
	for _, pattern := range []string{
		networkDir + "*-sallyport-*", "/run/systemd/*.conf.d/" + ours + "*",
		"/run/systemd/system/sallyport-update.timer",
	} {
		have, err := filepath.Glob(m.path(pattern))
		errs = append(errs, err)
		for _, path := range have {
			if _, wanted := files["/"+strings.TrimPrefix(strings.TrimPrefix(path, m.Root), "/")]; !wanted {
				errs = append(errs, os.Remove(path))
			}
		}
	}
	for _, name := range []string{
		configFile, keysFile, dumbFile, update.URLFile, update.NoKexecFile,
		update.StaggerFile,
	} {
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

// keptMark begins the first line of the kept file. The line names the file's source.
const keptMark = "# from "

// keep saves the file for the next boot. It does not write the same file again.
func (m Machine) keep(f found) error {
	if have, err := m.kept(); err == nil && have.source == "from "+f.source && bytes.Equal(have.data, f.data) {
		return nil
	}
	if err := os.MkdirAll(m.path(keptDir), 0o700); err != nil {
		return err
	}
	return m.write(keptFile, file{0o600, keptMark + f.source + "\n" + string(f.data)})
}

// kept returns the file that keep saved.
func (m Machine) kept() (found, error) {
	data, err := readRegular(m.path(keptFile), maxFile+1<<10)
	if err != nil {
		return found{}, err
	}
	first, rest, ok := strings.Cut(string(data), "\n")
	if !ok || !strings.HasPrefix(first, keptMark) {
		return found{}, errors.New("its first line does not name its source")
	}
	source := strings.TrimPrefix(first, "# ")
	return found{source, source, []byte(rest)}, nil
}

// openState ensures that the state directory can be written, at least in memory. It returns a
// sentence for each problem with the directory.
func (m Machine) openState() []string {
	dir := m.path(stateDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return []string{fmt.Sprintf("the state directory cannot be created: %v", err)}
	}
	var root, state unix.Stat_t
	if errors.Join(unix.Stat(m.path("/"), &root), unix.Stat(dir, &state)) == nil && root.Dev == state.Dev {
		return []string{
			"there is no state partition (sallyport-state): new state is kept in memory, and lost at a reboot",
		}
	}
	var fsKind unix.Statfs_t
	if err := unix.Statfs(dir, &fsKind); err == nil && fsKind.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return []string{"the state partition could not be written when this machine started: new state is kept in " +
			"memory, and lost at a reboot"}
	}
	err := tryWrite(dir)
	if err == nil {
		return nil
	}
	notice := fmt.Sprintf(
		"the state partition cannot be written (%v): new state is kept in memory, and lost at a reboot", err)
	upper, work := m.path(runDir+"/state/upper"), m.path(runDir+"/state/work")
	err = errors.Join(os.MkdirAll(upper, 0o700), os.MkdirAll(work, 0o700))
	if err == nil {
		err = unix.Mount("overlay", dir, "overlay", unix.MS_NOSUID|unix.MS_NODEV,
			"lowerdir="+dir+",upperdir="+upper+",workdir="+work)
	}
	if err != nil {
		notice += fmt.Sprintf("; mounting memory over it failed, too: %v", err)
	}
	return []string{notice}
}

// tryWrite writes and removes a file of the size that a small cluster's state needs.
func tryWrite(dir string) error {
	f, err := os.CreateTemp(dir, ".try-*")
	if err != nil {
		return reason(err)
	}
	_, err = f.Write(make([]byte, 1<<20))
	err = errors.Join(err, f.Sync())
	return reason(errors.Join(err, f.Close(), os.Remove(f.Name())))
}

// reason returns the error without its path, which only this program knows.
func reason(err error) error {
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

// lookEvery is how often Watch looks for another file.
const lookEvery = 30 * time.Second

// Watch looks for another file until ctx ends, and configures the machine by it. It
// calls say with each thing it does.
//
// Two things happen here: the ticker fires, or ctx ends.
func (m Machine) Watch(ctx context.Context, say func(string)) error {
	if _, err := os.Stat(m.path(update.URLFile)); err == nil {
		// Prepare runs too early to ask systemd for it.
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

// again looks once. A source that lost its file changes nothing: somebody may have
// pulled the stick.
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
		// The file in use stays in use. It may never have been kept.
		now := before
		now.Refused, now.Seen = l.state.Refused, l.state.Seen
		for _, text := range now.Lines() {
			say(text)
		}
		return m.tell(now)
	}
	var was *config.Config
	if data, err := readRegular(m.path(configFile), maxFile); err == nil {
		was, _ = accept(data)
	}
	s, err := m.make(ctx, l)
	if err != nil {
		return err
	}
	say("the file from " + s.Source + " is in use now")
	return m.enliven(ctx, m.verb(ctx, was, l.config))
}

// verb returns the verb of systemctl that makes the process use another file. The process reads the
// file again if it is ready, the machine is the same, and no key needs a restart. Otherwise it is
// restarted.
func (m Machine) verb(ctx context.Context, was, now *config.Config) string {
	const restart = "restart"
	if was == nil || now == nil || !reflect.DeepEqual(was.System, now.System) {
		return restart
	}
	if _, waiting := was.Next(now); len(waiting) > 0 {
		return restart
	}
	// While a unit starts, systemd takes a reload for done.
	if m.start(ctx, "", "systemctl", "--quiet", "is-active", "sallyport.service") != nil {
		return restart
	}
	return "reload"
}

// enliven makes the services read the new files, the process by this verb. If the condition of a
// unit fails now, the unit stops and does not start again.
func (m Machine) enliven(ctx context.Context, verb string) error {
	return errors.Join(
		m.start(ctx, "", "networkctl", "reload"),
		m.start(ctx, "", "systemctl", "--no-block", "try-restart", "systemd-resolved.service",
			"systemd-timesyncd.service", "qemu-guest-agent.service"),
		m.start(ctx, "", "systemctl", "--no-block", verb, "sallyport.service"),
		m.start(ctx, "", "systemctl", "--no-block", "restart", "sallyport-wait.service", "sallyport-ssh.service",
			"systemd-netlogd.service", "sallyport-screen@tty1.service", "sallyport-screen@ttyS0.service"),
		m.timer(ctx),
	)
}

// timer starts the timer of updates, or stops it if the file sets no address for them.
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

// pains returns the problems of the machine that appear only after a while.
func (m Machine) pains() (notices []string) {
	var up unix.Sysinfo_t
	_ = unix.Sysinfo(&up)
	if _, err := os.Stat(m.path("/run/systemd/timesync/synchronized")); err != nil && up.Uptime > 120 {
		notices = append(notices,
			"no time server has answered (system.ntp): if the clock is wrong, certificates look invalid")
	}
	addrs, err := net.InterfaceAddrs()
	if err == nil && !slices.ContainsFunc(addrs, func(a net.Addr) bool {
		ip, ok := a.(*net.IPNet)
		return ok && ip.IP.IsGlobalUnicast()
	}) {
		notices = append(notices, "no interface has an address: there is no link, or no DHCP server answers")
	}
	if waits, err := readRegular(m.path(update.WaitFile), 1<<10); err == nil {
		notices = append(notices, strings.TrimSpace(string(waits)))
	}
	return notices
}
