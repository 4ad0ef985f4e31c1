package haproxy

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// disk is the configuration directory as we last read or wrote it. Crashing
// between two of its renames leaves files that disagree: gen, which is made
// from the contents, then differs from what any worker runs, and the next
// Apply puts it right.
type disk struct {
	dir  string
	have map[string]File
	sums map[string][sha256.Size]byte

	secret string // as RenderOptions has it: nobody else can know it, and it stays
}

// openDisk reads what an earlier process left in dir, and makes dir and the
// default certificate if they are missing.
func openDisk(dir string) (*disk, error) {
	d := &disk{dir: dir, have: make(map[string]File), sums: make(map[string][sha256.Size]byte)}
	for _, sub := range []string{"", "maps", "certs", "extra", "lists"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o750); err != nil {
			return nil, err
		}
	}
	paths := []string{configFile, routeMap, wildMap, regexpMap, sniMap, crtList}
	certs, err := filepath.Glob(filepath.Join(dir, certDir, "*.pem"))
	if err != nil {
		return nil, err
	}
	for _, c := range certs {
		if name := filepath.Base(c); name != defaultCert {
			paths = append(paths, certDir+name)
		}
	}
	for _, sub := range []string{extraDir, listDir} {
		entries, err := os.ReadDir(filepath.Join(dir, sub))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			paths = append(paths, sub+e.Name())
		}
	}
	for _, path := range paths {
		content, err := os.ReadFile(filepath.Join(dir, path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		d.remember(path, File{content, 0o600})
	}
	return d, d.ensureDefaultCert()
}

func (d *disk) remember(path string, f File) {
	d.have[path], d.sums[path] = f, sumOf(path, f.Content)
}

// sumOf is what a file adds to the generation: haproxy.cfg without the lines
// that name it.
func sumOf(path string, content []byte) [sha256.Size]byte {
	if path == configFile {
		content = content[min(preambleLen, len(content)):]
	}
	return sha256.Sum256(content)
}

// gen is the generation of the files as they are.
func (d *disk) gen() string { return generation(d.sums) }

// sync makes the directory equal to files: everything else first, haproxy.cfg
// after it, then what is no longer named is removed. sums may be nil.
func (d *disk) sync(files map[string]File, sums map[string][sha256.Size]byte) error {
	var errs []error
	paths := slices.Sorted(maps.Keys(files))
	for _, path := range append(slices.DeleteFunc(paths, func(p string) bool { return p == configFile }), configFile) {
		f, ok := files[path]
		if have, there := d.have[path]; !ok || there && have.Mode == f.Mode && bytes.Equal(have.Content, f.Content) {
			continue
		}
		if err := writeFile(filepath.Join(d.dir, path), f); err != nil {
			errs = append(errs, err)
			continue
		}
		sum, known := sums[path]
		if !known {
			sum = sumOf(path, f.Content)
		}
		d.have[path], d.sums[path] = f, sum
	}
	for path := range d.have {
		if _, wanted := files[path]; wanted {
			continue
		}
		if err := os.Remove(filepath.Join(d.dir, path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		delete(d.have, path)
		delete(d.sums, path)
	}
	if len(errs) > 0 {
		return fmt.Errorf("writing HAProxy's files: %w", errors.Join(errs...))
	}
	return nil
}

// ours says whether haproxy.cfg, if there is one, was written by us.
func (d *disk) ours() bool {
	f, ok := d.have[configFile]
	return !ok || bytes.HasPrefix(f.Content, []byte(ours))
}

// closeDoors rewrites haproxy.cfg with every server disabled.
func (d *disk) closeDoors() error {
	cfg, ok := d.have[configFile]
	if !ok || !d.ours() || len(cfg.Content) < preambleLen {
		return nil
	}
	shape := markerOf(cfg.Content, "proc.shape")
	var out bytes.Buffer
	for line := range bytes.Lines(cfg.Content) {
		if text := strings.TrimRight(string(line), "\n"); strings.HasPrefix(text, "  server "+serverPrefix) && !strings.HasSuffix(text, " disabled") {
			line = []byte(text + " disabled\n")
		}
		out.Write(line)
	}
	if bytes.Equal(out.Bytes(), cfg.Content) {
		return nil
	}
	d.remember(configFile, File{out.Bytes(), cfg.Mode})
	copy(out.Bytes(), preamble(d.gen(), shape))
	files := maps.Clone(d.have)
	delete(d.have, configFile)
	return d.sync(files, nil)
}

// markerOf is the value haproxy.cfg gives a process variable.
func markerOf(text []byte, name string) string {
	_, after, _ := bytes.Cut(text[:min(preambleLen, len(text))], []byte("set-var "+name+" str("))
	value, _, _ := bytes.Cut(after, []byte(")"))
	return string(value)
}

// writeFile replaces a file by rename, with its content on stable storage
// first.
func writeFile(path string, f File) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	_, werr := tmp.Write(f.Content)
	if err := errors.Join(werr, tmp.Chmod(f.Mode), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// ensureDefaultCert keeps a self-signed certificate for the names nobody has
// one for: without any certificate a TLS bind does not start.
func (d *disk) ensureDefaultCert() error {
	path := filepath.Join(d.dir, certDir, defaultCert)
	if text, err := os.ReadFile(path); err == nil {
		if block, _ := pem.Decode(text); block != nil {
			if cert, err := x509.ParseCertificate(block.Bytes); err == nil && time.Until(cert.NotAfter) > 30*24*time.Hour {
				d.derive(text)
				return nil
			}
		}
	}
	text, err := selfSigned("default certificate of sallyport", nil, 10*365*24*time.Hour)
	if err != nil {
		return fmt.Errorf("making the default certificate: %w", err)
	}
	d.derive(text)
	return writeFile(path, File{text, 0o600})
}

// derive makes the secret from that of the default certificate.
func (d *disk) derive(text []byte) {
	sum := sha256.Sum256(append([]byte("sallyport, from frontend to frontend\n"), text...))
	d.secret = hex.EncodeToString(sum[:16])
}

// selfSigned makes an ECDSA P-256 certificate for names and its key, as PEM.
func selfSigned(subject string, names []string, life time.Duration) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: subject},
		DNSNames:     names,
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(life),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})...), nil
}
