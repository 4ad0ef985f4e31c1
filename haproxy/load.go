package haproxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"
)

// Load holds the result of one reading by a Meter.
type Load struct {
	During   time.Duration // since the previous reading; 0 for the first reading, which has no earlier counts
	Requests uint64        // HTTP requests of clients
	Failed   uint64        // requests answered with a status from 500 to 599
	// Response is the time from the request to the first byte of the answer. It is the mean over
	// the backends that had requests, weighted by their requests. It is negative if there was no
	// request.
	Response time.Duration
	Backends []BackendLoad // by name; the next reading overwrites the slice
	// Clusters has the sums for each cluster, by its name, which stands in the place of a backend's. For a
	// backend of a set they have the traffic of each server, and otherwise that of the backend. The next
	// reading overwrites the slice.
	Clusters []BackendLoad
}

// A BackendLoad holds the traffic of one backend since the previous reading, and its state now.
// Backend is the name in the Config, even while the backend has another name in the worker.
type BackendLoad struct {
	Backend  string
	Requests uint64 // HTTP requests; for a TCP backend, connections
	// Failed is the number of requests answered with a status from 500 to 599. For a TCP backend,
	// it is the number of connections that no server accepted, or that a server broke.
	Failed uint64
	// Response is the time from a request to the first byte of its answer: HAProxy's mean of the
	// last 1,024 requests. It is negative for a TCP backend, and if there was no request.
	Response    time.Duration
	Connections int // of clients, now
	Open        int // servers that take requests, now
}

// A Meter reads the worker's counters again and again. It continues to count after a reload, but
// misses the requests to the old worker after the last reading of that worker. Its memory grows
// only with the number of HAProxy's backends, and of the servers of those in a set. A reading allocates
// memory only for new backends and servers. One goroutine owns a Meter.
type Meter struct {
	proxy    *Proxy
	in       *bufio.Reader
	heading  []byte
	columns  []int               // index of each column among the constants below; -1 if it is not read
	clients  counter             // sum of all frontends
	backends map[string]*counter // by name in the worker
	servers  map[string]*counter // of backends of a set, by backend/server in the worker
	rows     []*counter          // of the present reading, a backend after its servers
	pid      int                 // pid of the worker at the last reading
	at       time.Time           // time of the last reading; zero before the first
	load     []BackendLoad
	sums     []BackendLoad // by cluster

	legend legend
	place  string   // backend of the servers that are being read, by its name in the worker
	of     *Backend // the same backend; nil if it is not known
	late   bool     // the reading before had the backend, and not its servers
	key    []byte   // of servers
}

// A counter holds HAProxy's counts for one proxy, or for one server of a set.
type counter struct {
	name     string
	cluster  string // of a server; empty for a proxy
	split    bool   // the servers of the backend are counted, too
	was, now counts
	tcp      bool
	reading  time.Time // the last reading that had the counter
}

type counts struct{ requests, failed, response, connections, open uint64 }

// Columns of the statistics (HAProxy manual, management, 9.1).
const (
	pxname = iota
	svname
	modeOf
	reqTot
	hrsp5xx
	stot
	econ
	eresp
	scur
	act
	bck
	rtime
	state
	columnsRead
)

var columnNames = [columnsRead]string{
	"pxname", "svname", "mode", "req_tot", "hrsp_5xx", "stot", "econ", "eresp",
	"scur", "act", "bck", "rtime", "status",
}

const (
	// statsLine bounds a line of the statistics. HAProxy's own limit is its buffer, 16 kB.
	statsLine = 64 << 10
	// statsTimeout bounds a reading.
	statsTimeout = 30 * time.Second
)

// Meter returns a Meter of the worker.
func (p *Proxy) Meter() *Meter {
	return &Meter{
		proxy: p, in: bufio.NewReaderSize(nil, statsLine),
		backends: make(map[string]*counter), servers: make(map[string]*counter),
	}
}

// Read reads the counters of the worker. It takes no lock, so it delays no Apply. Its cost grows
// with the backends: HAProxy sends some 500 bytes of each, and also of each server if a backend is of a
// set. A failed reading changes nothing: the next reading also reports the traffic before it.
func (m *Meter) Read(ctx context.Context) (Load, error) {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", m.proxy.files.StatsSocket)
	if err != nil {
		return Load{}, fmt.Errorf("HAProxy's worker: %w", err)
	}
	defer conn.Close() //nolint:errcheck // all is read
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	const frontends, backends, servers = 1, 2, 4
	what := frontends | backends
	if m.legend = m.proxy.reading(); m.legend.sets() {
		what |= servers
	}
	if _, err := fmt.Fprintf(conn, "show stat -1 %d -1;show info\n", what); err != nil {
		return Load{}, fmt.Errorf("HAProxy's worker: %w", err)
	}
	now := time.Now()
	m.in.Reset(&gentle{Conn: conn})
	pid, err := m.read(now)
	if err != nil {
		return Load{}, fmt.Errorf("HAProxy's worker: the statistics: %w", err)
	}
	return m.compare(now, pid), nil
}

// read reads the answer to "show stat", and to "show info", which has the pid of the worker.
func (m *Meter) read(now time.Time) (pid int, err error) {
	heading := false
	m.rows, m.clients.now, m.place = m.rows[:0], counts{}, ""
	for {
		line, err := m.in.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF) && pid == 0:
			return 0, errors.New("the answer is incomplete")
		case errors.Is(err, io.EOF):
			return pid, nil
		case err != nil:
			return 0, err
		}
		line = bytes.TrimRight(line, "\n")
		switch {
		case bytes.HasPrefix(line, []byte("# ")):
			if err := m.readHeading(line[2:]); err != nil {
				return 0, err
			}
			heading = true
		case bytes.HasPrefix(line, []byte("Pid: ")):
			pid = int(digits(line[len("Pid: "):]))
			if !heading {
				return 0, errors.New("they have no heading")
			}
		case heading && pid == 0 && bytes.IndexByte(line, ',') > 0:
			m.readRow(line, now)
		}
	}
}

// readHeading finds the columns. The heading is nearly always the same as in the previous reading.
func (m *Meter) readHeading(line []byte) error {
	if bytes.Equal(line, m.heading) {
		return nil
	}
	names := strings.Split(string(line), ",")
	for _, name := range columnNames {
		if !slices.Contains(names, name) {
			return fmt.Errorf("they have no column %s", name)
		}
	}
	m.columns = m.columns[:0]
	for _, name := range names {
		m.columns = append(m.columns, slices.Index(columnNames[:], name))
	}
	m.heading = bytes.Clone(line)
	return nil
}

// readRow adds the counters of one line.
func (m *Meter) readRow(line []byte, now time.Time) {
	var cell [columnsRead][]byte
	for at := 0; len(line) > 0 && at < len(m.columns); at++ {
		end, quoted := 0, false
		for ; end < len(line) && (quoted || line[end] != ','); end++ {
			if line[end] == '"' {
				quoted = !quoted
			}
		}
		if i := m.columns[at]; i >= 0 {
			cell[i] = line[:end]
		}
		line = line[min(end+1, len(line)):]
	}
	switch {
	case string(cell[svname]) == "FRONTEND":
		if bytes.HasPrefix(cell[pxname], []byte("sallyport-")) {
			return // no client connects there
		}
		m.clients.now.requests += digits(cell[reqTot])
		m.clients.now.failed += digits(cell[hrsp5xx])
	case string(cell[svname]) == "BACKEND":
		c := m.backends[string(cell[pxname])]
		if c == nil {
			c = &counter{name: string(cell[pxname])}
			m.backends[c.name] = c
		}
		m.count(c, &cell, now)
		c.now.open = digits(cell[act]) + digits(cell[bck])
		c.split = m.place == c.name && m.of != nil && m.of.Set != ""
	default:
		if c := m.server(cell[pxname], cell[svname]); c != nil {
			begins := c.reading.IsZero() && m.late // the requests before it was counted are none of this reading
			if m.count(c, &cell, now); begins {
				c.was = c.now
			}
			if c.now.open = 0; bytes.HasPrefix(cell[state], []byte("UP")) || string(cell[state]) == "no check" {
				c.now.open = 1
			}
		}
	}
}

// count notes the cells of a row, which is part of the reading, but for the open servers.
func (m *Meter) count(c *counter, cell *[columnsRead][]byte, now time.Time) {
	c.reading, c.tcp = now, string(cell[modeOf]) == "tcp"
	c.now = counts{
		requests: digits(cell[reqTot]), failed: digits(cell[hrsp5xx]), response: digits(cell[rtime]),
		connections: digits(cell[scur]),
	}
	if c.tcp {
		c.now.requests, c.now.failed = digits(cell[stot]), digits(cell[econ])+digits(cell[eresp])
	}
	m.rows = append(m.rows, c)
}

// server returns the counter of a server. It returns nil if the backend is of no set, or if the server's
// cluster is not known.
func (m *Meter) server(backend, name []byte) *counter {
	if m.place != string(backend) {
		m.place = string(backend)
		m.of = m.legend.backend(m.legend.nameOf(m.place))
		before := m.backends[m.place]
		m.late = before != nil && !before.split
	}
	if m.of == nil || m.of.Set == "" {
		return nil
	}
	m.key = append(append(append(m.key[:0], backend...), '/'), name...)
	c := m.servers[string(m.key)]
	if c == nil {
		at, found := slices.BinarySearchFunc(m.of.Servers, name, func(s Server, name []byte) int {
			return strings.Compare(s.Name, string(name))
		})
		if !found {
			return nil
		}
		c = &counter{name: string(m.key), cluster: m.of.ClusterOf(&m.of.Servers[at])}
		m.servers[c.name] = c
	}
	return c
}

// digits returns the digits of a cell as a number. It returns 0 for an empty cell, which means that
// the column does not apply.
func digits(cell []byte) (n uint64) {
	for _, c := range cell {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + uint64(c-'0')
	}
	return n
}

// grown returns how much the counter has grown since the last call.
func (c *counter) grown(restarted bool) (requests, failed uint64) {
	was := c.was
	if restarted || c.now.requests < was.requests {
		was = counts{}
	}
	c.was = c.now
	return c.now.requests - was.requests, c.now.failed - min(was.failed, c.now.failed)
}

// compare returns the Load since the previous reading, at the end of a reading. Another worker
// counts from zero.
func (m *Meter) compare(now time.Time, pid int) Load {
	restarted, first := pid != m.pid, m.at.IsZero()
	t := Load{Response: -1}
	if !first {
		t.During = now.Sub(m.at)
	}
	if t.Requests, t.Failed = m.clients.grown(restarted); first {
		t.Requests, t.Failed = 0, 0
	}
	m.pid, m.at, m.load, m.sums = pid, now, m.load[:0], m.sums[:0]
	whole := mean{}
	for _, c := range m.rows {
		b := BackendLoad{Backend: c.name, Response: -1, Connections: int(c.now.connections), Open: int(c.now.open)}
		if b.Requests, b.Failed = c.grown(restarted); first {
			b.Requests, b.Failed = 0, 0
		}
		if !c.tcp && b.Requests > 0 {
			b.Response = time.Duration(c.now.response) * time.Millisecond
		}
		if c.cluster != "" {
			m.sum(c.cluster, b)
			continue
		}
		whole.add(b)
		if b.Backend = m.legend.nameOf(c.name); b.Backend == "" || ownBackend(b.Backend) {
			continue
		}
		m.load = append(m.load, b)
		if of := m.legend.backend(b.Backend); of != nil && of.Set == "" {
			m.sum(of.Cluster, b)
		}
	}
	t.Response = whole.response()
	for _, all := range []map[string]*counter{m.backends, m.servers} {
		for name, c := range all {
			if !c.reading.Equal(now) {
				delete(all, name)
			}
		}
	}
	byName := func(a, b BackendLoad) int { return strings.Compare(a.Backend, b.Backend) }
	slices.SortFunc(m.sums, byName)
	slices.SortStableFunc(m.load, byName)
	// While a backend moves out of a spare backend, HAProxy has it twice.
	t.Backends, t.Clusters = m.load[:0], m.sums
	for _, b := range m.load {
		if last := len(t.Backends) - 1; last >= 0 && t.Backends[last].Backend == b.Backend {
			t.Backends[last].add(b)
			continue
		}
		t.Backends = append(t.Backends, b)
	}
	m.load = t.Backends
	return t
}

// sum adds traffic to that of a cluster.
func (m *Meter) sum(cluster string, b BackendLoad) {
	i := slices.IndexFunc(m.sums, func(of BackendLoad) bool { return of.Backend == cluster })
	if i < 0 {
		i, m.sums = len(m.sums), append(m.sums, BackendLoad{Backend: cluster, Response: -1})
	}
	of := &m.sums[i]
	both := mean{}
	both.add(*of)
	both.add(b)
	of.add(b)
	of.Response = both.response()
}

// A mean is that of the times of responses, weighted by the requests.
type mean struct{ requests, sum float64 }

func (m *mean) add(b BackendLoad) {
	if b.Response >= 0 {
		m.requests += float64(b.Requests)
		m.sum += float64(b.Requests) * float64(b.Response)
	}
}

// response returns the mean. It is negative if there was no request.
func (m *mean) response() time.Duration {
	if m.requests == 0 {
		return -1
	}
	return time.Duration(m.sum / m.requests)
}

// add adds the traffic of another place of the same backend.
func (t *BackendLoad) add(o BackendLoad) {
	t.Requests += o.Requests
	t.Failed += o.Failed
	t.Connections += o.Connections
	t.Open += o.Open
	t.Response = max(t.Response, o.Response)
}
