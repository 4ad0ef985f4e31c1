package haproxy

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A client resumes a TLS session with a ticket, which holds the encrypted session (RFC 5077; RFC
// 8446, 4.6.1). The members of a Group can read each other's tickets: they derive the same keys
// from the secret and from the clock. HAProxy 3.2 resumes no session of an older HAProxy, or under
// another certificate. A HAProxy that is alone makes no tickets.
//
// Somebody who learns the secret can read all tickets. In TLS 1.2 the tickets reveal the traffic of
// a recorded session. In TLS 1.3 they do not, because each connection also has keys of its own.
//
// HAProxy has the keys of three periods: the previous, the present and the next. It encrypts with
// the key of the present period. A member with a fast clock may already use the key of the next
// period. HAProxy reads them from a file when it starts. A command adds the next key and drops the
// first (HAProxy Management Guide, "set ssl tls-key").

// ticketFile is the path of the file with the keys of TLS tickets, one on each line.
const ticketFile = extraDir + "_tickets"

// ticketPeriod is how long a key encrypts tickets.
const ticketPeriod = 12 * time.Hour

// PeriodOf returns the Config.Period for a time.
func PeriodOf(now time.Time) int { return int(now.Unix() / int64(ticketPeriod/time.Second)) }

// tickets returns the keys that HAProxy has in a period, in the order of HAProxy.
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

// turns returns the keys to send to a worker so that it has the keys want. A worker that has not
// loaded the file has no keys. turns returns no keys for it.
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

// turn sends the next keys of TLS tickets to the worker. Its errors contain no key.
func (w worker) turn(path string, keys []string) error {
	for _, key := range keys {
		if _, err := w.read("set ssl tls-key " + path + " " + key); err != nil {
			return fmt.Errorf("the keys of TLS tickets: %w", err)
		}
	}
	return nil
}

// tickets reads the keys of TLS tickets from the worker. It returns no keys if the worker has not
// loaded the file.
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
