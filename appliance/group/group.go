// Package group lets the appliances that serve the same addresses hear each other. It derives keys
// from the secret that they share (Key). It owns the heartbeat (Pulse): ten times a second, each
// member tells every other member by UDP that it is alive, and what it serves. A member that starts
// asks the others for their memory of owners (Ask, Tell). Orders that an operator gives to one member
// reach the others (Order). No other package decides how fit an
// appliance is to serve (Class, Fit).
//
// It promises that a process is heard only if it has the secret and answers now. A packet that
// somebody forged, recorded or sent to another member changes nothing but a count. Neither a clock
// nor a file is needed for that.
//
// A group is without an announcement only while none of its HAProxies answers, or if the
// operator forces it.
//
// Its limit: it neither moves nor announces addresses. The caller decides what a silent member
// means. A member that hears no other member works as if it were the only member.
package group

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"time"
)

const (
	// Port is where members listen, unless Options has another port.
	Port = 7477
	// Interval is the time between two heartbeats to a member.
	Interval = 100 * time.Millisecond
	// Silence is the time without a heartbeat after which a member is not alive. Three
	// heartbeats in a row have to be lost.
	Silence = 350 * time.Millisecond
	// memory is how long a problem is reported after it was last seen.
	memory = 10 * time.Second
	// skew is how far the clocks of two members may be apart without a Problem.
	skew = 5 * time.Second
)

// Key derives a key of 32 bytes from the secret of a group (HKDF with SHA-256). Each purpose has a
// key of its own, which reveals neither the secret nor another key. All members derive the same
// key.
func Key(secret []byte, purpose string) []byte {
	key, err := hkdf.Key(sha256.New, secret, nil, "sallyport group "+purpose, sha256.Size)
	if err != nil {
		panic(fmt.Sprintf("HKDF refuses a key of its own hash's size: %v", err)) // a known key would be worse
	}
	return key
}

// A Member is an appliance of the group.
type Member struct {
	Name    string
	Address netip.Addr // in the network that the members share
}

// A Word is what a member reports about itself. Texts have at most 64 printable
// ASCII characters, and Why has 255: Say cuts off the rest.
type Word struct {
	Class    Class // how fit it is to serve
	Draining bool
	Version  string        // of its program
	Config   string        // sum of its configuration
	Serves   string        // sum of what its HAProxy serves
	Why      string        // its faults, for people; empty if it has none
	Since    time.Duration // how long it has had this class; it grows between two calls of Say
}

// same reports whether two words are equal apart from Since.
func (w Word) same(other Word) bool {
	w.Since, other.Since = 0, 0
	return w == other
}

// Heard holds the last heartbeat of another appliance, and judges it.
type Heard struct {
	Member  Member
	Word    Word          // its last; zero if there was none
	Age     time.Duration // since its last word; if there was none, since Listen
	Alive   bool          // it is in the list of members, and its last word is younger than Silence
	Problem string        // a sentence for people; empty without a problem
	Asks    bool          // it asks for the texts of others
	Orders  string        // its last orders; empty if it has sent none
	Told    string        // its text for members that ask; empty unless this appliance asks and all pages have come
}
