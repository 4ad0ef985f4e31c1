package upstream

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"sallyport/bgp"
)

const (
	// protocol is the version of orders and reports. The owner tells a process with another version
	// to leave, and starts a new process. Both ends understand Leave and Protocol of every version.
	protocol = 1
	// longest bounds a line, in bytes: 100,000 announcements are 6 MB.
	longest = 16 << 20
)

// settings are the values that a BGP speaker gets at its start. A change of one starts a new
// speaker.
type settings struct {
	ASN      uint32
	RouterID netip.Addr
	HoldTime time.Duration
}

// An order tells the process the wishes of its owner. It is whole: each order replaces the order
// before.
type order struct {
	Protocol int
	ID       int  // of its report
	Leave    bool // withdraw all announcements, and end

	Settings settings
	Routers  []router
	Announce []bgp.Announcement // if nil, not empty: keep the announcements of an earlier owner
	Outlive  time.Duration      // how long the process goes on after a crash of its owner
	Proxy    string             // the socket for asking HAProxy whether it answers
	Level    slog.Level         // of the process's log
}

// A router is a bgp.Peer with the fields that no JSON of a bgp.Peer has.
type router struct {
	bgp.Peer

	Password string
	BFD      bgp.BFD
}

func (r router) peer() bgp.Peer {
	p := r.Peer
	p.Password, p.BFD = bgp.Secret(r.Password), r.BFD
	return p
}

func routerOf(p bgp.Peer) router {
	r := router{p, string(p.Password), p.BFD}
	r.Peer.Password, r.Peer.BFD = "", bgp.BFD{}
	return r
}

// same reports whether two orders ask for the same sessions and announcements.
func (o order) same(other order) bool {
	return o.Settings == other.Settings && o.Outlive == other.Outlive && o.Proxy == other.Proxy &&
		o.Level == other.Level && slices.Equal(o.Routers, other.Routers) &&
		(o.Announce == nil) == (other.Announce == nil) && slices.Equal(o.Announce, other.Announce)
}

// A report tells the owner the state of the sessions.
type report struct {
	Protocol int
	ID       int // of the order that it answers; 0 if it answers no order
	Peers    []bgp.PeerState
	Peering  string // why an order's routers are not set up; "" if they are
	Failed   string // why an order's announcements are not made; "" if they are
}

// lines returns a reader of lines that are at most longest.
func lines(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 4096), longest)
	return s
}

// read reads the next line into a value.
func read(from *bufio.Scanner, value any) error {
	if !from.Scan() {
		if err := from.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	if err := json.Unmarshal(from.Bytes(), value); err != nil {
		return fmt.Errorf("a line is no valid JSON: %w", err)
	}
	return nil
}

// write writes a value as a line.
func write(to io.Writer, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = to.Write(append(text, '\n'))
	return err
}
