package world

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/test/lab/debian"
)

// A module is a Go module of its own below test that makes one program of many parts of somebody
// else's software, or that requires such a program. The program is compiled once, and kept in the cache.
type module struct {
	folder  string   // below test; its last part is also the name in the cache
	title   string   // in progress and errors
	takes   string   // how long compiling takes
	ldflags []string // in addition to -s -w
	program string   // package of a required module that is the program; default: that of the folder

	// With a source, the cache has a folder: the program, which has the folder's name, and copies of
	// files of that required module, changed by edits. Without one, the cache has the program alone.
	source string
	copies [][2]string // file or folder of the source, and its name beside the program
	edits  []edit
	links  []string // further names of the program

	tests bool     // the program is that of the module's tests
	tools []string // packages of required modules that become further programs of the folder
}

// name returns the name of the module in the cache, and of its program.
func (m module) name() string { return path.Base(m.folder) }

// An edit replaces a text that occurs once in a copied file.
type edit struct{ file, old, new string }

// fetch returns the path in the cache, and compiles the program if the cache does not have it. It
// looks for the module in the repository around the working directory. The cache is
// $SALLYPORT_CACHE, or sallyport in the user's cache directory.
func (m module) fetch(ctx context.Context, progress io.Writer) (string, error) {
	dir, err := m.find()
	if err != nil {
		return "", err
	}
	key := sha256.New()
	sources, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return "", err
	}
	for _, name := range append([]string{filepath.Join(dir, "go.mod"), filepath.Join(dir, "go.sum")}, sources...) {
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		key.Write(text)
	}
	if m.source != "" {
		_, _ = fmt.Fprintf(key, "%q%q%q%q", m.source, m.copies, m.edits, m.links)
	}
	cache, err := debian.Cache()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o750); err != nil {
		return "", err
	}
	made := filepath.Join(cache, m.name()+"-"+hex.EncodeToString(key.Sum(nil)[:8]))
	lock, err := os.OpenFile(made+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() //nolint:errcheck // closing is unlocking
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(made); !errors.Is(err, fs.ErrNotExist) {
		return made, err
	}
	half := made + ".new"
	if err := os.RemoveAll(half); err != nil {
		return "", err
	}
	if err := m.make(ctx, dir, half, progress); err != nil {
		return "", err
	}
	return made, os.Rename(half, made)
}

// find finds the module above the working directory.
func (m module) find() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		found := filepath.Join(dir, "test", m.folder)
		if _, err := os.Stat(filepath.Join(found, "go.mod")); err == nil {
			return found, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no test/%s above %s: run this inside the repository", m.folder, start)
		}
	}
}

// make makes what the cache keeps: the program, or the folder around it.
func (m module) make(ctx context.Context, dir, half string, progress io.Writer) error {
	if m.source == "" {
		return m.compile(ctx, dir, half, cmp.Or(m.program, "."), progress)
	}
	if err := os.Mkdir(half, 0o750); err != nil {
		return err
	}
	if err := m.compile(ctx, dir, filepath.Join(half, m.name()), ".", progress); err != nil {
		return err
	}
	for _, tool := range m.tools {
		if err := m.compile(ctx, dir, filepath.Join(half, path.Base(tool)), tool, progress); err != nil {
			return err
		}
	}
	for _, name := range m.links {
		if err := os.Symlink(m.name(), filepath.Join(half, name)); err != nil {
			return err
		}
	}
	source, err := moduleFolder(ctx, dir, m.source)
	if err != nil {
		return fmt.Errorf("find the files of %s: %w", m.title, err)
	}
	for _, c := range m.copies {
		if err := copyAll(filepath.Join(source, c[0]), filepath.Join(half, c[1])); err != nil {
			return fmt.Errorf("copy the files of %s: %w", m.title, err)
		}
	}
	for _, e := range m.edits {
		e.file = filepath.Join(half, e.file)
		if err := e.apply(); err != nil {
			return fmt.Errorf("edit the files of %s: %w", m.title, err)
		}
	}
	return nil
}

// moduleFolder returns the folder of a module that the module in dir requires. Go downloads it if
// need be.
func moduleFolder(ctx context.Context, dir, path string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", path)
	cmd.Dir = dir
	out, err := output(cmd)
	if err != nil {
		return "", err
	}
	var found struct{ Dir string }
	err = json.Unmarshal([]byte(out), &found)
	return found.Dir, err
}

func (e edit) apply() error {
	text, err := os.ReadFile(e.file)
	if err != nil {
		return err
	}
	if n := strings.Count(string(text), e.old); n != 1 {
		return fmt.Errorf("%s has %q %d times: want once", e.file, e.old, n)
	}
	return os.WriteFile(e.file, []byte(strings.Replace(string(text), e.old, e.new, 1)), 0o600)
}

// copyAll copies a file, or a folder with all that is in it.
func copyAll(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.CopyFS(to, os.DirFS(from))
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o600)
}

// compile compiles a package of the module, or a tool, into a program.
func (m module) compile(ctx context.Context, dir, program, pkg string, progress io.Writer) error {
	say(progress, "compiling %s: this once, %s", m.title, m.takes)
	begun := time.Now()
	command := []string{"go", "build"}
	if m.tests && pkg == "." {
		command = []string{"go", "test", "-c", "-vet=off"} // go vet would read all packages that it imports
	}
	flags := append([]string{"-s", "-w"}, m.ldflags...)
	// Tests may run beside it.
	cmd := exec.CommandContext(ctx, "nice", append(command, "-v", "-trimpath", "-ldflags", strings.Join(flags, " "), "-o",
		program, pkg)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // the same program with and without a C compiler
	// go build passes an interrupt on to its compilers.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	lines, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("compile %s: %w", m.title, err)
	}
	packages := make(chan string)
	go func() {
		defer close(packages)
		for scan := bufio.NewScanner(lines); scan.Scan(); {
			packages <- scan.Text()
		}
	}()
	tick := time.NewTicker(15 * time.Second)
	defer tick.Stop()
	var said []string // go build -v names each package; what else it says is a complaint
	for count := 0; packages != nil; {
		select {
		case line, more := <-packages:
			if !more {
				packages = nil
				break
			}
			count++
			said = append(said, line)
			if len(said) > 20 {
				said = said[1:]
			}
		case <-tick.C:
			text := fmt.Sprintf("compiling %s: %s", m.title, time.Since(begun).Round(time.Second))
			if count > 0 { // go test -c names no packages
				text = fmt.Sprintf("%s, %d packages", text, count)
			}
			say(progress, "%s", text)
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("compile %s: %w:\n%s", m.title, err, strings.Join(said, "\n"))
	}
	say(progress, "compiled %s in %s", m.title, time.Since(begun).Round(time.Second))
	return nil
}
