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
	"io"
	"io/fs"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// disk is the configuration directory as we last read or wrote it. A crash between two of its
// renames leaves files that disagree, or that HAProxy has not accepted. In that case gen, which
// depends on the contents, differs from the generation of any worker. HAProxy is not started from
// such files, and the next Apply corrects them.
type disk struct {
	dir  string
	have map[string]File
	sums map[string][sha256.Size]byte

	former map[string]*File // the files before the last sync; nil for a file that did not exist

	secret string // as RenderOptions.Secret: nobody else can know it, and it never changes
}

// maxFile bounds the size of a file in the configuration directory, in bytes. A haproxy.cfg with
// 50,000 servers has 8 MB, and a map of 100,000 hosts has 25 MB.
const maxFile = 64 << 20

// openDisk reads the files that an earlier process left in dir. It makes dir and the default
// certificate if they are missing. It removes everything that it cannot read, or that is not a
// regular file. odd has a sentence about each removal.
func openDisk(dir string) (d *disk, odd []string, err error) {
	d = &disk{dir: dir, have: make(map[string]File), sums: make(map[string][sha256.Size]byte)}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, nil, err
	}
	remove := func(path string, why error) error {
		odd = append(odd, fmt.Sprintf("%v; it was removed", why))
		return os.RemoveAll(path)
	}
	paths := []string{configFile}
	for _, sub := range []string{mapDir, certDir, extraDir, listDir} {
		path := filepath.Join(dir, sub)
		if found, err := os.Lstat(path); err == nil && !found.IsDir() {
			if err := remove(path, fmt.Errorf("%s is not a directory", path)); err != nil {
				return nil, nil, err
			}
		}
		if err := os.MkdirAll(path, 0o750); err != nil {
			return nil, nil, err
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, nil, err
		}
		for _, e := range entries {
			if path := sub + e.Name(); path != certDir+defaultCert {
				paths = append(paths, path)
			}
		}
	}
	for _, path := range paths {
		full := filepath.Join(dir, path)
		content, err := readRegular(full, maxFile)
		switch {
		case err == nil:
			d.remember(path, File{content, 0o600})
		case !errors.Is(err, fs.ErrNotExist):
			if err := remove(full, err); err != nil {
				return nil, nil, err
			}
		}
	}
	return d, odd, d.ensureDefaultCert()
}

func (d *disk) remember(path string, f File) {
	d.have[path], d.sums[path] = f, sumOf(path, f.Content)
}

// sumOf returns the hash of a file for the generation. For haproxy.cfg it leaves out the lines that
// name the generation.
func sumOf(path string, content []byte) [sha256.Size]byte {
	if path == configFile {
		content = content[min(preambleLen, len(content)):]
	}
	return sha256.Sum256(content)
}

// gen returns the generation of the files as they are.
func (d *disk) gen() string { return generation(d.sums) }

// sync makes the directory equal to files. It writes haproxy.cfg after all other files, and then
// removes the files that haproxy.cfg no longer names. sums may be nil.
func (d *disk) sync(files map[string]File, sums map[string][sha256.Size]byte) error {
	var errs []error
	d.former = make(map[string]*File)
	note := func(path string) {
		d.former[path] = nil
		if was, there := d.have[path]; there {
			d.former[path] = &was
		}
	}
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
		note(path)
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
		note(path)
		delete(d.have, path)
		delete(d.sums, path)
	}
	if len(errs) > 0 {
		return fmt.Errorf("writing HAProxy's files: %w", errors.Join(errs...))
	}
	return nil
}

// ours reports whether we wrote haproxy.cfg, or the file does not exist.
func (d *disk) ours() bool {
	f, ok := d.have[configFile]
	return !ok || bytes.HasPrefix(f.Content, []byte(ours))
}

// restore undoes the last sync.
func (d *disk) restore() error {
	files := maps.Clone(d.have)
	for path, f := range d.former {
		if f == nil {
			delete(files, path)
		} else {
			files[path] = *f
		}
	}
	return d.sync(files, nil)
}

// writeFile writes the content to stable storage, and then replaces the file by a rename.
func writeFile(path string, f File) error {
	if info, err := os.Lstat(path); err == nil && info.IsDir() { // a rename cannot replace a directory by a file
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return replace(path, f.Mode, func(to io.Writer) error {
		_, err := to.Write(f.Content)
		return err
	})
}

// ensureDefaultCert makes the self-signed default certificate if it is missing or unusable. HAProxy
// serves it for names that have no certificate. Without any certificate HAProxy cannot listen for
// TLS. The secret is derived from this certificate.
func (d *disk) ensureDefaultCert() error {
	path := filepath.Join(d.dir, certDir, defaultCert)
	text, err := readRegular(path, maxFile)
	pair, unfit := ReadPair(text, text)
	if err != nil || unfit != nil || !bytes.Equal(pair.PEM, text) ||
		time.Until(pair.Chain[0].NotAfter) < 30*24*time.Hour {
		if text, err = selfSigned("default certificate of sallyport", nil, 10*365*24*time.Hour); err == nil {
			err = writeFile(path, File{text, 0o600})
		}
		if err != nil {
			return fmt.Errorf("making the default certificate: %w", err)
		}
	}
	sum := sha256.Sum256(append([]byte("sallyport, from frontend to frontend\n"), text...))
	d.secret = hex.EncodeToString(sum[:16])
	return nil
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
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})...), nil
}
