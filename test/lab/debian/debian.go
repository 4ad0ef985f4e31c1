// Package debian keeps programs of other Debian suites on this machine: programs
// that this suite no longer has, and newer and older versions of its own.
//
// The programs are in the cache, each with the libraries it needs. They are not
// installed: dpkg does not know them. A program appears in the process table as the
// dynamic linker that starts it, with the program's name as first argument.
package debian

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Package is a package of a Debian suite.
type Package struct{ Suite, Name string }

func (p Package) String() string { return p.Suite + "'s " + p.Name }

// ErrNone says that a suite does not have a package.
var ErrNone = errors.New("the suite does not have it")

// OtherHAProxies returns the HAProxy packages of the Debian suites other than this machine's: one
// for each series that a user may run. Experimental has the next one at times, and none at others.
func OtherHAProxies() []Package {
	release, _ := os.ReadFile("/etc/os-release") // without it, all are others
	var others []Package
	for _, suite := range []string{"bookworm", "trixie", "sid", "experimental"} {
		if !bytes.Contains(release, []byte("\nVERSION_CODENAME="+suite+"\n")) {
			others = append(others, Package{suite, "haproxy"})
		}
	}
	return others
}

// FetchHAProxies fetches the HAProxys of the other suites.
func FetchHAProxies(ctx context.Context, progress io.Writer) error {
	for _, p := range OtherHAProxies() {
		folder, err := p.Fetch(ctx, progress)
		if errors.Is(err, ErrNone) && p.Suite == "experimental" {
			_, _ = fmt.Fprintf(progress,
				"Debian's experimental had no haproxy: the tests run with the other versions. Remove %s, and make "+
					"setup asks again.\n", folder)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// HAProxies returns the programs to test with: the one in PATH and those of the other
// suites, or those that SALLYPORT_TEST_HAPROXY lists, separated by colons.
func HAProxies() ([]string, error) {
	if list := os.Getenv("SALLYPORT_TEST_HAPROXY"); list != "" {
		return filepath.SplitList(list), nil
	}
	path, err := exec.LookPath("haproxy")
	list := []string{path}
	for _, p := range OtherHAProxies() {
		folder, missing := p.Folder()
		if errors.Is(missing, ErrNone) {
			continue
		}
		err = errors.Join(err, missing)
		list = append(list, filepath.Join(folder, "haproxy"))
	}
	if err != nil {
		err = fmt.Errorf("run make setup: %w", err)
	}
	return list, err
}

// Ends returns the first and the last of some programs: of HAProxies the one in PATH, and the newest.
func Ends(programs []string) []string {
	if len(programs) <= 2 {
		return programs
	}
	return []string{programs[0], programs[len(programs)-1]}
}

// BIRD returns the folder of BIRD 1 (bird, birdc, bird6, birdc6) or BIRD 2 (bird, birdc), and
// fetches it if necessary. An empty folder means that the programs are in PATH. Bookworm is the
// last suite with both series.
func BIRD(ctx context.Context, series int, progress io.Writer) (string, error) {
	if series == 2 {
		return Package{"bookworm", "bird2"}.Fetch(ctx, progress)
	}
	if _, err := exec.LookPath("bird6"); err == nil { // there is none in series 2
		return "", nil
	}
	return Package{"bookworm", "bird"}.Fetch(ctx, progress)
}

// FRR returns the folder of FRR (zebra, bgpd, bfdd), and fetches it if necessary.
func FRR(ctx context.Context, progress io.Writer) (string, error) {
	return Package{"bookworm", "frr"}.Fetch(ctx, progress)
}

// Folder returns the folder of the package's programs. The error is [fs.ErrNotExist] before the
// package is fetched, and ErrNone if its suite did not have it.
func (p Package) Folder() (string, error) {
	cache, err := Cache()
	if err != nil {
		return "", err
	}
	folder := filepath.Join(cache, "debian", p.Suite, p.Name)
	found, err := os.ReadDir(folder)
	switch {
	case err != nil:
		return folder, fmt.Errorf("%s is not here: %w", p, err)
	case len(found) == 0: // see fetch.sh
		return folder, fmt.Errorf("%s: %w", p, ErrNone)
	}
	return folder, nil
}

//go:embed fetch.sh
var fetch string

// Fetch fetches the package if it is not here, and returns its folder.
func (p Package) Fetch(ctx context.Context, progress io.Writer) (string, error) {
	folder, err := p.Folder()
	if !errors.Is(err, fs.ErrNotExist) {
		return folder, err
	}
	if progress != nil {
		_, _ = fmt.Fprintf(progress, "fetching %s\n", p)
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o750); err != nil {
		return "", err
	}
	half, err := os.MkdirTemp(filepath.Dir(folder), p.Name+"-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(half) //nolint:errcheck // gone, if all went well
	cmd := exec.CommandContext(ctx, "sh", "-c", fetch, "fetch", p.Suite, p.Name)
	cmd.Dir = half
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("fetch %s: %w: %s", p, err, strings.TrimSpace(string(out)))
	}
	_ = os.Rename(half, folder) // if it fails, someone else was faster
	return p.Folder()
}

// Cache returns the folder of everything that is fetched or compiled for tests.
func Cache() (string, error) {
	if dir := os.Getenv("SALLYPORT_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "sallyport"), err
}

// Prometheus returns the package with promtool and prometheus.
func Prometheus() Package { return Package{"bookworm", "prometheus"} }

// Nginx returns the package of nginx, which tests put in the place of another controller.
func Nginx() Package { return Package{"trixie", "nginx"} }
