package haproxy

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// A BasicAuth admits only clients with a name and a password of a Userlist (RFC 7617).
//
// HAProxy hashes a password for up to 15 ms, in a thread that also serves requests of other tenants.
// A right password is therefore remembered for five minutes after its last request, and is not
// hashed meanwhile. While a tenant gets too many wrong passwords, HAProxy hashes none for it. The
// networks of its clients are divided into parts, and each part has its share of the wrong passwords:
// a client that sends too many keeps out only the new logins of its own part.
type BasicAuth struct {
	Userlist string
	Realm    string // that browsers show
	Tenant   string // whose wrong passwords are counted together
	Guesses  int    // wrong passwords that a tenant gets in a second, at most; 0: no bound
}

// A part of a tenant's clients has its share of the wrong passwords in a period. The shares
// together are no more than Guesses, so the sum needs no counter of its own.
const (
	guessParts  = 16 // at most
	guessPeriod = 5  // seconds
)

// shares returns the number of parts, and how many wrong passwords each of them gets in a period.
func (a BasicAuth) shares() (parts, each int) {
	all := a.Guesses * guessPeriod
	each = (all + guessParts - 1) / guessParts
	return all / each, each
}

// The tables of every BasicAuth. One holds hashes of right credentials, the other one counts the
// wrong credentials of each part of each tenant. No other worker gets these tables, so after a
// change of the users no password is remembered.
const (
	rightTable = "rightpasswords"
	wrongTable = "wrongpasswords"
)

// loginTables are the sections of the two tables.
const loginTables = "\nbackend " + rightTable + "\n  stick-table type binary len 32 size 10k expire 5m\n" +
	"\nbackend " + wrongTable + "\n  stick-table type string len 128 size 50k expire 10s store gpc0_rate(5s)\n"

// Directive returns the rules of a BasicAuth. While too many passwords of a part of the tenant's
// clients are wrong, a client of this part whose password is not remembered is answered 429.
//
// The address of a client is the one that every other rule takes (see phaseSource). An IPv4
// address, or an IPv6 network of 64 bits, is always of the same part.
//
// What is remembered is a hash of the credentials, with the name of the userlist and with a key
// that only this installation, or Group, has.
func (a BasicAuth) Directive() (Directive, error) {
	if !isName(a.Userlist) {
		return Directive{}, fmt.Errorf("%s is not the name of a userlist", shown(a.Userlist))
	}
	tenant := cmp.Or(a.Tenant, "all")
	if !isName(tenant) {
		return Directive{}, fmt.Errorf("%s is not the name of a tenant", shown(a.Tenant))
	}
	if strings.ContainsAny(a.Realm, `"\`) {
		return Directive{}, fmt.Errorf(`%s has a quote or a backslash, which a realm cannot have`, shown(a.Realm))
	}
	realm, err := quote(strings.ReplaceAll(a.Realm, "%", "%%"))
	const right, tried = "{ var(txn.right) -m found }", "{ req.fhdr(authorization) -m found }"
	lines := []string{
		// The time of a hash grows with the length of the password, so the header is bounded.
		"http-request deny deny_status 400 if { req.fhdr(authorization) -m len gt 256 }",
		"http-request set-var(txn.login) req.fhdr(authorization),concat(" + cookieKey + a.Userlist + "),sha2(256)",
		"http-request set-var(txn.right) bool(true) if { var(txn.login),in_table(" + rightTable + ") }",
	}
	var part string
	if a.Guesses > 0 {
		parts, each := a.shares()
		part = "src,ipmask(32,64),crc32,mod(" + strconv.Itoa(parts) + "),concat(." + tenant + ")"
		lines = append(lines, "http-request deny deny_status 429 if "+tried+" !"+right+
			" { "+part+",table_gpc0_rate("+wrongTable+") ge "+strconv.Itoa(each)+" }")
	}
	lines = append(lines,
		"http-request set-var(txn.right) bool(true) if !"+right+" { http_auth("+a.Userlist+") }",
		"http-request track-sc2 var(txn.login) table "+rightTable+" if "+right)
	if a.Guesses > 0 {
		lines = append(lines,
			"http-request track-sc2 "+part+" table "+wrongTable+" if "+tried+" !"+right,
			"http-request sc-inc-gpc0(2) if "+tried+" !"+right)
	}
	lines = append(lines, "http-request auth realm "+realm+" if !"+right)
	return Directive{phase: phaseAuth, names: a.Userlist, text: strings.Join(lines, "\n")}, err
}
