package move

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"

	"sallyport/appliance/config"
)

// A File is a file as its reader found it.
type File struct {
	Name string
	Text []byte
}

// A Reader reads the files that a file includes, by a pattern of the form of path/filepath.Match. A
// pattern that matches no file has no files.
type Reader func(pattern string) ([]File, error)

// MaxSize bounds the bytes of all files together.
const MaxSize = 4 << 20

// ErrUnknown is the error of a file that no parser is for.
var ErrUnknown = errors.New("is no bird.conf, no keepalived.conf, and no unit, command line or Helm values of " +
	"HAProxy's ingress controller")

// Import returns a configuration file with what the files say.
func Import(files []File, read Reader) (*Result, error) {
	d, size := newDraft(), 0
	var b bird
	var k kic
	var v keepalived
	var names []string
	for _, f := range files {
		if size += len(f.Text); size > MaxSize {
			return nil, fmt.Errorf("the files have more than %d bytes together, the limit", MaxSize)
		}
		names = append(names, plain(f.Name))
		var err error
		switch formOf(f.Text) {
		case inBIRD:
			err = b.read(f, read)
		case inKeepalived:
			err = v.read(f, read)
		case inUnit:
			err = k.readUnit(f)
		case inYAML:
			err = k.readYAML(f, d)
		case inArguments:
			err = k.readArguments(f)
		default:
			err = fmt.Errorf("%s: %w", plain(f.Name), ErrUnknown)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := k.apply(d, read); err != nil {
		return nil, err
	}
	b.apply(d)
	v.apply(d)
	d.finish()
	r := d.result(names)
	if _, err := config.Parse("this file", []byte(r.Text)); err != nil {
		return nil, fmt.Errorf("the result is no configuration file: %w", err)
	}
	return r, nil
}

// finish adds the keys that each file needs, and makes the keys of several files fit together.
func (d *draft) finish() {
	if !d.has("clusters.kubeconfig") {
		d.replace("clusters.kubeconfig", "/etc/sallyport/kubeconfig")
		d.note("clusters.kubeconfig", Remark{
			Kind: ToDo, Why: "no file names the credentials of the cluster",
			Do: "sallyport manifests prints an account with the rights that the appliance needs",
		})
	}
	if d.has("group.addresses") {
		d.openAddresses()
	}
}

// openAddresses makes HAProxy listen on every address, as a group needs it.
func (d *draft) openAddresses() {
	for _, key := range []string{"haproxy.http", "haproxy.https"} {
		s := d.settings[key]
		if s == nil {
			continue
		}
		old := s.values
		s.values = nil
		for _, v := range old {
			port := v
			if i := bytes.LastIndexByte([]byte(v), ':'); i >= 0 {
				port = `"` + v[i:]
			}
			d.add(key, port)
			if port != v {
				s.remarks = append(s.remarks, Remark{
					Kind: Widened, What: v, Why: "in a group HAProxy listens on every address",
				})
			}
		}
	}
}

// A form is the form of a file.
type form int

const (
	unknown form = iota
	inBIRD
	inKeepalived
	inUnit
	inYAML
	inArguments
)

// forms has an expression for each form. The first that matches counts.
var forms = []struct {
	form form
	is   *regexp.Regexp
}{
	{inArguments, regexp.MustCompile(`^[^\n\x00]*\x00`)},
	{inUnit, regexp.MustCompile(`(?m)^\s*\[(Unit|Service|Install)\]\s*$`)},
	{inKeepalived, regexp.MustCompile(`(?m)^\s*(vrrp_instance\s|vrrp_sync_group\s|global_defs\b|virtual_server\s)`)},
	{inBIRD, regexp.MustCompile(`(?m)^\s*(protocol\s+\w+|template\s+\w+|router\s+id\s|filter\s+\w+|function\s+\w+|` +
		`define\s+\w+\s*=|include\s+"|log\s+(syslog|stderr|"))`)},
	{inYAML, regexp.MustCompile(`(?m)^(controller|apiVersion|kind|spec|"?kubernetes-ingress"?)\s*:`)},
	{inArguments, regexp.MustCompile(`(^|\s)--[a-z][-a-z0-9.]*([= \n]|$)`)},
}

func formOf(text []byte) form {
	for _, f := range forms {
		if f.is.Match(text) {
			return f.form
		}
	}
	return unknown
}
