package haproxy

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A client resumes a TLS session by a ticket, which holds the session, encrypted (RFC
// 5077; RFC 8446, 4.6.1). The members of a Group can read each other's tickets: they
// derive the same keys from the secret and from the clock. HAProxy 3.2 resumes no session
// of an older HAProxy, or under another certificate. A HAProxy that is alone makes no
// tickets.
//
// Who learns the secret can read the tickets of any time, and in TLS 1.2 the traffic of a
// recorded session with them. In TLS 1.3 each connection has keys of its own besides.
//
// HAProxy has three keys: that of the period before, that of now, by which it encrypts,
// and that of the next one, which a member whose clock is ahead may use already. HAProxy
// reads them from a file when it starts. A command adds the next key and drops the first
// (HAProxy Management Guide, "set ssl tls-key").

// ticketFile holds the keys of TLS tickets, a line each.
const ticketFile = extraDir + "_tickets"

// ticketPeriod is how long a key encrypts tickets.
const ticketPeriod = 12 * time.Hour

// PeriodOf returns the Config.Period of a time.
func PeriodOf(now time.Time) int { return int(now.Unix() / int64(ticketPeriod/time.Second)) }

// tickets returns the keys of TLS tickets of a period, in the order in which HAProxy has
// them.
func (g *Group) tickets(period int) []string {
	if g == nil {
		return nil
	}
	const size = 80 // a name of 16 bytes, and 32 bytes each for AES and for HMAC
	keys := make([]string, 3)
	for i := range keys {
		keys[i] = base64.StdEncoding.EncodeToString(derive(g.Secret, "tickets of period "+strconv.Itoa(period-1+i),
			size))
	}
	return keys
}

// turns returns the keys that a worker has to be told, one after the other, until it has
// the wanted ones. A worker that has not loaded the file has none, and is told none.
func turns(have, want []string) []string {
	if len(have) != len(want) {
		return nil
	}
	n := 0
	for !slices.Equal(have[n:], want[:len(want)-n]) {
		n++
	}
	return want[len(want)-n:]
}

// turn tells the worker the next keys of TLS tickets. No error contains one.
func (w worker) turn(path string, keys []string) error {
	for _, key := range keys {
		if _, err := w.read("set ssl tls-key " + path + " " + key); err != nil {
			return fmt.Errorf("the keys of TLS tickets: %w", err)
		}
	}
	return nil
}

// tickets reads the keys of TLS tickets from the worker; none, if it has not loaded the
// file.
func (w worker) tickets(path string) (keys []string, err error) {
	answer, err := w.ask("show tls-keys " + path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(answer) {
		if words := strings.Fields(line); len(words) == 2 && strings.Contains(words[0], ".") {
			keys = append(keys, words[1])
		}
	}
	return keys, nil
}
