package haproxy

import (
	"bufio"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// An Extra is a file that options and directives name, without its directory: certificates of
// authorities, certificates to show to servers. HAProxy reads an Extra only at its start, so a
// change of its content takes a reload.
type Extra struct {
	Name    string // unique: "default_internal-ca.ca.pem"
	Content []byte
}

// ours reports whether no object has brought the file.
func (e *Extra) ours() bool { return e.Name == authScript || e.Name == mirrorScript }

// ClientCertificate makes the Extra for ServerOptions.Crt: a chain and its key.
func ClientCertificate(name string, chain []byte) (*Extra, error) {
	pair, err := ReadPair(chain, chain)
	if err != nil {
		return nil, err
	}
	return &Extra{name + ".crt.pem", pair.PEM}, nil
}

// Signer makes the Extra for Process.Signer: the certificate of an authority and
// its key.
func Signer(name string, chain []byte) (*Extra, error) {
	pair, err := ReadPair(chain, chain)
	if err != nil {
		return nil, err
	}
	if !pair.Chain[0].IsCA {
		return nil,
			errors.New("the first certificate is not that of an authority: want one with CA in its basic constraints")
	}
	return &Extra{name + ".sign.pem", pair.PEM}, nil
}

// Authorities makes the Extra for ServerOptions.CA and Cert.ClientCA. It has only the certificates
// of the trusted authorities.
func Authorities(name string, text []byte) (*Extra, error) {
	e := &Extra{Name: name + ".ca.pem"}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fmt.Errorf("one of the certificates cannot be read: %w", err)
		}
		e.Content = append(e.Content, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
	}
	if len(e.Content) == 0 {
		return nil, errors.New("there is no certificate: want PEM blocks of type CERTIFICATE")
	}
	return e, nil
}

// ErrorCodes lists the statuses that an ErrorFile can have (HAProxy Configuration
// Manual, "errorfile").
var ErrorCodes = []int{200, 400, 401, 403, 404, 405, 407, 408, 410, 413, 425, 429, 500, 501, 502, 503, 504}

// ErrorFile makes the Extra for a status of Process.ErrorFiles: a whole response,
// from its status line to the end of its body, in at most 15 kB.
func ErrorFile(status int, response string) (*Extra, error) {
	if !slices.Contains(ErrorCodes, status) {
		return nil, fmt.Errorf("%d is not the status of an error file: allowed are %s", status,
			strings.Trim(fmt.Sprint(ErrorCodes), "[]"))
	}
	head, body, found := strings.Cut(strings.ReplaceAll(strings.TrimLeft(response, "\r\n"), "\r\n", "\n"), "\n\n")
	if !found || !strings.HasPrefix(head, "HTTP/1.") {
		return nil,
			errors.New("not a whole response: want a line such as \"HTTP/1.1 503 Service Unavailable\", headers, an " +
				"empty line and a body")
	}
	text := strings.ReplaceAll(head, "\n", "\r\n") + "\r\n\r\n" + body
	const most = 15 << 10 // HAProxy's buffer, without the space for rewriting
	if len(text) > most {
		return nil, fmt.Errorf("the response has %d bytes; at most %d are allowed", len(text), most)
	}
	r, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil) //nolint:bodyclose // a string
	switch {
	case err != nil:
		return nil, fmt.Errorf("not a valid response: %w", err)
	case len(r.TransferEncoding) > 0 || r.ContentLength >= 0 && r.ContentLength != int64(len(body)):
		return nil,
			fmt.Errorf("the headers do not match the body of %d bytes: remove Content-Length and Transfer-Encoding",
				len(body))
	}
	return &Extra{errorFile(status), []byte(text)}, nil
}

func errorFile(status int) string { return strconv.Itoa(status) + ".http" }

// A Userlist holds the users that BasicAuth admits.
type Userlist struct {
	Name  string // unique
	Users []User // sorted by Name
}

// A User is a name and the hash of a password: a secret. NewUser makes one.
type User struct {
	Name string
	Hash string
}

// String returns only the name, so that hashes stay out of logs.
func (u User) String() string { return u.Name }

// hashes matches the allowed forms of crypt(3). It rejects slow forms, because HAProxy hashes
// passwords in a thread that also serves other clients. It rejects forms that the C library does
// not know, because HAProxy would not start.
var hashes = matcher(`^(\$1\$[./0-9A-Za-z]{1,8}\$[./0-9A-Za-z]{22}` +
	`|\$5\$(rounds=[1-9][0-9]{3}\$)?[./0-9A-Za-z]{1,16}\$[./0-9A-Za-z]{43}` +
	`|\$6\$(rounds=[1-9][0-9]{3}\$)?[./0-9A-Za-z]{1,16}\$[./0-9A-Za-z]{86}` +
	`|\$2[aby]\$0[4-8]\$[./0-9A-Za-z]{53})$`)

var userName = matcher(`^[A-Za-z0-9_.@-]{1,128}$`)

// NewUser makes a User of a valid name and hash. Its errors do not contain the hash.
func NewUser(name, hash string) (User, error) {
	switch {
	case !userName(name):
		return User{}, fmt.Errorf("%s is not the name of a user: allowed are letters, digits and _ . @ -", shown(name))
	case !hashes(hash):
		return User{}, fmt.Errorf(
			"the password of user %s is not a usable hash: allowed are those of `openssl passwd -1`, `-5` and `-6`, "+
				"and of `htpasswd -B` with a cost of 4 to 8", name)
	}
	return User{name, hash}, nil
}

func (u *Userlist) validate() error {
	for _, user := range u.Users {
		if _, err := NewUser(user.Name, user.Hash); err != nil {
			return fmt.Errorf("userlist %s: %w", u.Name, err)
		}
	}
	return nil
}

func (u *Userlist) text() string {
	var b strings.Builder
	b.WriteString("\nuserlist " + u.Name + "\n")
	for _, user := range u.Users {
		b.WriteString("  user " + user.Name + " password '" + user.Hash + "'\n")
	}
	return b.String()
}

// String returns only the name, so that hashes stay out of logs.
func (u *Userlist) String() string { return u.Name }
