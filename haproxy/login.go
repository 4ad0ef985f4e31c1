package haproxy

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// A BasicAuth admits only clients with a name and a password of a Userlist (RFC 7617).
//
// HAProxy hashes a password for up to 15 ms, in a thread that also serves requests of other
// tenants. A right password is therefore remembered for five minutes after its last request, and is
// not hashed meanwhile. While a tenant gets too many wrong passwords, HAProxy hashes no passwords
// for it. The networks of its clients are divided into parts, and each part may have a share of the
// wrong passwords. A client that sends too many therefore prevents only new logins from its own
// part.
type BasicAuth struct {
	Userlist string
	Realm    string // the realm that browsers show
	Tenant   string // wrong passwords are counted for each tenant
	Guesses  int    // wrong passwords of a tenant in a second, at most; 0 if there is no bound
	// Any says that a request needs no password if it has passed another guard, see Admit. Last says that no guard
	// follows that such a request may pass in its place; without Any it has no effect.
	Any, Last bool
}

// A part of a tenant's clients has its share of the wrong passwords in a period. The shares
// together are no more than Guesses, so the sum needs no counter of its own.
const (
	guessParts  = 16 // at most
	guessPeriod = 5  // seconds
)

// shares returns the number of parts, and how many wrong passwords each part may have in a period.
func (a BasicAuth) shares() (parts, each int) {
	all := a.Guesses * guessPeriod
	each = (all + guessParts - 1) / guessParts
	return all / each, each
}

// The tables of every BasicAuth. The first table holds hashes of right credentials. The second
// table counts the wrong credentials of each part of each tenant. No other worker gets these
// tables, so after a change of the users no password is remembered.
const (
	rightTable = "rightpasswords"
	wrongTable = "wrongpasswords"
)

// loginTables are the sections of the two tables.
const loginTables = "\nbackend " + rightTable + "\n  stick-table type binary len 32 size 10k expire 5m\n" +
	"\nbackend " + wrongTable + "\n  stick-table type string len 128 size 50k expire 10s store gpc0_rate(5s)\n"

// Directive returns the rules of a BasicAuth. While too many passwords of one part of the tenant's
// clients are wrong, a client of this part gets 429 unless its password is remembered.
//
// A client's address is the same as for all other rules (see phaseSource). An IPv4 address, or an
// IPv6 network of 64 bits, always belongs to the same part.
//
// HAProxy remembers only a hash of the credentials, the name of the userlist, and a key that only
// this installation, or Group, has.
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
	const right = "{ var(txn.right) -m found }"
	tried, basic, unless := "{ req.fhdr(authorization) -m found }", "", ""
	if a.Any {
		// A service that is asked next may take another scheme, as Bearer.
		tried, unless = "{ req.fhdr(authorization) -m beg -i 'basic ' }", unsatisfied
		basic = " " + tried
	}
	lines := []string{
		// The time of a hash grows with the length of the password, so the header is bounded.
		"http-request deny deny_status 400 if" + basic + " { req.fhdr(authorization) -m len gt 256 }" + unless,
		"http-request set-var(txn.login) req.fhdr(authorization),concat(" + cookieKey + a.Userlist + "),sha2(256)",
		"http-request set-var(txn.right) bool(true) if { var(txn.login),in_table(" + rightTable + ") }",
	}
	var part string
	if a.Guesses > 0 {
		parts, each := a.shares()
		part = "src,ipmask(32,64),crc32,mod(" + strconv.Itoa(parts) + "),concat(." + tenant + ")"
		lines = append(lines, "http-request deny deny_status 429 if "+tried+" !"+right+
			" { "+part+",table_gpc0_rate("+wrongTable+") ge "+strconv.Itoa(each)+" }"+unless)
	}
	lines = append(lines,
		"http-request set-var(txn.right) bool(true) if"+basic+" !"+right+" { http_auth("+a.Userlist+") }"+unless,
		"http-request track-sc2 var(txn.login) table "+rightTable+" if "+right)
	if a.Guesses > 0 {
		lines = append(lines,
			"http-request track-sc2 "+part+" table "+wrongTable+" if "+tried+" !"+right+unless,
			"http-request sc-inc-gpc0(2) if "+tried+" !"+right+unless)
	}
	if a.Any && !a.Last {
		lines = append(lines, "http-request set-var("+satisfied+") bool(true) if "+right)
	} else {
		lines = append(lines, "http-request auth realm "+realm+" if !"+right+unless)
	}
	return Directive{phase: phaseAuth, names: a.Userlist, text: strings.Join(lines, "\n")}, err
}
