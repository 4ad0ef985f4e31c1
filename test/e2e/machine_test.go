package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// A machine is the appliance's host in a lab as a reader of the manual has it: this machine's root
// with systemd, the journal, kubectl and the administrator's kubeconfig. Nothing that is done there
// reaches this machine: changes of files are kept in memory, and go with it.
type machine struct {
	pid  string // of its systemd
	home string // where commands start: this repository
}

// boot starts systemd as process 1 of namespaces of its own. An overlay cannot have its upper layer
// below its lower one, so that is a file system in memory. systemd takes itself for that of a
// container, and leaves devices alone.
const boot = `
exec unshare --mount --propagation private --pid --fork --kill-child --cgroup --uts --ipc sh -euc '
	dir=$1 kubectl=$2 kubeconfig=$3 netns=$4 home=$5
	root=$dir/root
	mount -t tmpfs tmpfs "$dir"
	mkdir "$dir/upper" "$dir/work" "$root"
	mount -t overlay -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" overlay "$root"
	cd "$root"
	for on in run dev tmp; do mount -t tmpfs -o mode=755 tmpfs "$on"; done; chmod 1777 tmp
	n=0
	for of in /root /root/.cache "$home"; do # each may be a file system of its own, or in /tmp
		[ -d "$of" ] || continue
		n=$((n + 1))
		mkdir -p ".$of" "$dir/upper$n" "$dir/work$n"
		mount -t overlay -o "lowerdir=$of,upperdir=$dir/upper$n,workdir=$dir/work$n" overlay ".$of"
	done
	mount -t proc proc proc
	mount -t sysfs sysfs sys
	mount -t cgroup2 cgroup2 sys/fs/cgroup
	for node in null zero full random urandom tty; do touch "dev/$node"; mount --bind "/dev/$node" "dev/$node"; done
	mkdir dev/shm dev/pts run/netns run/lock
	mount -t tmpfs tmpfs dev/shm
	mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
	ln -s pts/ptmx dev/ptmx
	ln -s /proc/self/fd dev/fd
	mount --rbind /run/netns run/netns
	: > etc/fstab
	mkdir -p root/.kube etc/systemd/system usr/local/bin old
	cp "$kubeconfig" root/.kube/config
	printf "#!/bin/sh\nexec %s kubectl \"\$@\"\n" "$kubectl" > usr/local/bin/kubectl
	printf "#!/bin/sh\nhost=\$2; shift 3\nexec nsenter --net=/run/netns/%s\$host \"\$@\"\n" "$netns" > usr/local/bin/lab
	chmod +x usr/local/bin/kubectl usr/local/bin/lab
	printf "[Unit]\nDefaultDependencies=no\nRequires=sysinit.target\n" > etc/systemd/system/manual.target
	rm -f etc/systemd/system/haproxy.service
	rm -rf var/lib/sallyport etc/sallyport var/log/journal ".$home"/.build/*.deb
	pivot_root . old
	umount -l old
	exec env -i container=lab HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=manual.target --show-status=false
' sh "$@"
`

// machine boots the appliance's host. It goes down with the test.
func (r *testbed) machine(t *testing.T) *machine {
	t.Helper()
	home, err := filepath.Abs("../..")
	r.must(err)
	mounts, err := os.ReadFile("/proc/mounts")
	r.must(err)
	all := regexp.MustCompile(`(?m)^\S+ (\S+) cgroup2 `).FindSubmatch(mounts)
	if all == nil {
		t.Fatal("systemd needs cgroups of version 2, and nothing has mounted them")
	}
	cgroup := filepath.Join(string(all[1]), "sallyport-"+r.Options().Name)
	r.must(os.MkdirAll(cgroup, 0o755))
	inside, err := os.Open(cgroup)
	r.must(err)
	defer inside.Close() //nolint:errcheck // the process has its own
	kubectl := r.Lab.Kubectl(t.Context()).Args
	program := kubectl[len(kubectl)-4]
	prefix := strings.TrimSuffix(r.Netns(world.Appliance), world.Appliance)
	cmd := r.Command(context.WithoutCancel(t.Context()), world.Appliance, "sh", "-c", boot, "sh", t.TempDir(), program,
		r.KubeconfigFile(), prefix, home)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(inside.Fd())}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	r.must(cmd.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // and systemd with it, and all that runs there
		<-ended
		r.must(rig.Eventually(context.WithoutCancel(t.Context()), "its cgroups are gone", func() error {
			out, err := exec.Command("find", cgroup, "-depth", "-type", "d", "-exec", "rmdir", "{}",
				"+").CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}))
	})
	m := &machine{home: home}
	r.eventually("systemd runs", func() error {
		select {
		case <-ended:
			t.Fatalf("the machine ended: %s", said.String())
		default:
		}
		children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", cmd.Process.Pid))
		if err != nil || len(strings.Fields(string(children))) != 1 {
			return errors.Join(err, errors.New("there is no process 1 yet"))
		}
		m.pid = strings.TrimSpace(string(children))
		// Units of this machine that fail there make it degraded.
		if out, err := m.run(t.Context(), "systemctl is-system-running --wait"); out != "running\n" &&
			out != "degraded\n" {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	return m
}

// run runs lines of a shell in the repository, as root, and returns what they print.
func (m *machine) run(ctx context.Context, script string) (string, error) {
	cmd := exec.CommandContext(ctx, "nsenter", "-t", m.pid, "-m", "-u", "-i", "-n", "-p", "-C", "-r", "sh", "-ec",
		"cd "+m.home+"\n"+script)
	cmd.Env = append(os.Environ(), "HOME=/root", "PATH=/usr/local/bin:"+os.Getenv("PATH"), "TERM=dumb",
		"DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
