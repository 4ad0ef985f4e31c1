package input

import (
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// What members tell each other of owners
//
// The members of a group read the same objects. Decisions that depend only on these objects are the
// same in a fresh process. A Memory holds the rest. Only a process that saw earlier objects knows
// it: the owner that a host or an address is kept for, the namespace that had a host before an
// older claim to it came, and the addresses that were given but are not recorded yet.

// mostMemory bounds the bytes of a Memory that is read.
const mostMemory = 8 << 20

// A Memory holds facts about owners in some clusters that cannot be decided from the objects.
type Memory struct {
	// Left counts the owners that had no room.
	Left     int                `json:"left,omitempty"`
	Clusters map[string]*Owners `json:"clusters"`
}

// An entry is one host or one address of a Memory.
type entry struct {
	cluster, namespace string
	host               string
	addr               netip.Addr
}

// Encode writes a Memory in at most most bytes. If it does not fit, the namespaces get room in turns,
// so that none of them displaces the others, and of each namespace the newest come first.
func (m Memory) Encode(most int) ([]byte, Memory) {
	text := m.encode()
	if len(text) <= most {
		return text, m
	}
	all := m.entries()
	for n := len(all); ; {
		n = min(n-1, n*most/len(text))
		part := m.only(all[:max(n, 0)])
		part.Left = m.Left + len(all) - max(n, 0)
		if text = part.encode(); len(text) <= most || n <= 0 {
			return text, part
		}
	}
}

func (m Memory) encode() []byte {
	text, _ := json.Marshal(m) // it holds nothing that cannot be encoded
	return deflated(text)
}

func deflated(text []byte) []byte {
	var b bytes.Buffer
	z, _ := flate.NewWriter(&b, flate.DefaultCompression) // the level is valid
	_, _ = z.Write(text)                                  // a buffer takes everything
	_ = z.Close()
	return b.Bytes()
}

// entries returns the entries of a Memory: the first of each namespace, then the second of each
// namespace, and so on.
func (m Memory) entries() []entry {
	var all []entry
	for cluster, o := range m.Clusters {
		for host, namespace := range o.Namespaces {
			all = append(all, entry{cluster: cluster, namespace: namespace, host: host})
		}
		for addr, who := range o.Addresses {
			all = append(all, entry{cluster: cluster, namespace: who.Namespace, addr: addr})
		}
	}
	slices.SortFunc(all, func(x, y entry) int {
		// Entries that something names now have no time.
		a, b := m.Clusters[x.cluster].left(x), m.Clusters[y.cluster].left(y)
		switch {
		case a.IsZero() && !b.IsZero():
			return -1
		case b.IsZero() && !a.IsZero():
			return 1
		}
		return cmp.Or(b.Compare(a), cmp.Compare(x.cluster, y.cluster), cmp.Compare(x.host, y.host),
			x.addr.Compare(y.addr))
	})
	turns, turn := make(map[entry]int, len(all)), make(map[[2]string]int)
	for _, e := range all {
		of := [2]string{e.cluster, e.namespace}
		turns[e] = turn[of]
		turn[of]++
	}
	slices.SortStableFunc(all, func(x, y entry) int { return cmp.Compare(turns[x], turns[y]) })
	return all
}

// only returns a part of a Memory.
func (m Memory) only(entries []entry) Memory {
	part := Memory{Clusters: make(map[string]*Owners)}
	for cluster := range m.Clusters {
		part.Clusters[cluster] = &Owners{Namespaces: make(map[string]string)}
	}
	for _, e := range entries {
		m.Clusters[e.cluster].copyTo(part.Clusters[e.cluster], e)
	}
	return part
}

// Learn reads a Memory that Encode wrote. It takes none of it if one host, address or name is
// not valid.
func Learn(text []byte) (m Memory, err error) {
	z := flate.NewReader(bytes.NewReader(text))
	plain, err := io.ReadAll(io.LimitReader(z, mostMemory+1))
	if err != nil {
		return Memory{}, err
	}
	if len(plain) > mostMemory {
		return Memory{}, fmt.Errorf("it has more than %d bytes", mostMemory)
	}
	if err := json.Unmarshal(plain, &m); err != nil {
		return Memory{}, err
	}
	if m.Left < 0 {
		return Memory{}, errors.New("it leaves out less than nothing")
	}
	for cluster, o := range m.Clusters {
		if err := o.check(); err != nil {
			return Memory{}, fmt.Errorf("cluster %q: %w", cluster, err)
		}
	}
	return m, nil
}

// check returns the first mistake in Owners that another process sent. Times need no check: a time
// in the future counts as now (leaving), so nothing is kept for longer than ReleaseAfter.
func (o *Owners) check() error {
	if o == nil || o.Namespaces == nil {
		return errors.New("it has no owners")
	}
	for host, namespace := range o.Namespaces {
		wild := strings.HasPrefix(host, "*.")
		switch {
		case host == "":
		case wild && len(validation.IsWildcardDNS1123Subdomain(host)) > 0,
			!wild && len(validation.IsDNS1123Subdomain(host)) > 0:
			return fmt.Errorf("%q is no host", host)
		}
		if !isOwner(namespace) {
			return fmt.Errorf("%q is no namespace", namespace)
		}
	}
	for host := range o.Left {
		if _, has := o.Namespaces[host]; !has {
			return fmt.Errorf("%q is left, and was nobody's", host)
		}
	}
	for addr, who := range o.Addresses {
		namespace, name, _ := strings.Cut(who.Service, "/")
		switch {
		case !addr.IsValid() || addr.Zone() != "" || addr.Is4In6():
			return fmt.Errorf("%q is no address of a Service", addr)
		case !isOwner(who.Namespace) || !isOwner(namespace) || who.Namespace != Everyone && who.Namespace != namespace:
			return fmt.Errorf("%q is no namespace of Service %q", who.Namespace, who.Service)
		case len(validation.IsDNS1123Subdomain(name)) > 0:
			return fmt.Errorf("%q is no Service or Gateway", who.Service)
		}
	}
	return nil
}

// isOwner reports whether a name may be the namespace of an owner.
func isOwner(namespace string) bool {
	return namespace == Everyone || len(validation.IsDNS1123Label(namespace)) == 0
}

// Owners returns the owners in a cluster for a process that learns them. What it knows itself may
// be old, and counts only where the Memory is not whole. known is false if the Memory knows nothing
// of the cluster.
func (m Memory) Owners(cluster string, own *Owners) (o *Owners, known bool) {
	told := m.Clusters[cluster]
	if told == nil {
		return own, false
	}
	if m.Left == 0 || own == nil {
		return told, true
	}
	o = &Owners{
		Namespaces: maps.Clone(own.Namespaces), Left: maps.Clone(own.Left),
		Addresses: maps.Clone(own.Addresses),
	}
	if o.Namespaces == nil {
		o.Namespaces = make(map[string]string)
	}
	for _, e := range (Memory{Clusters: map[string]*Owners{cluster: told}}).entries() {
		told.copyTo(o, e)
	}
	return o, true
}
