package haproxy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/haproxytech/client-native/v6/runtime"
	"github.com/haproxytech/client-native/v6/runtime/options"
)

const (
	// Bytes of commands in one batch. HAProxy 3.2 silently drops a line that is longer than its
	// buffer.
	maxLine    = 8 << 10
	maxBatch   = 500      // commands in one batch: more at a time delays traffic
	maxPayload = 12 << 10 // bytes of a certificate that can be sent as a command; a longer one takes a reload
)

// worker is the process that serves, reached through its stats socket. Every exchange dials anew,
// because an open connection would stay with the old worker after a reload.
type worker struct {
	sock *runtime.SingleRuntime // one exchange at a time
	path string                 // path of the same socket
}

// connect prepares exchanges with the socket at path. It does not dial.
func connect(path string) (*runtime.SingleRuntime, error) {
	s := new(runtime.SingleRuntime)
	if err := s.Init(path, false, options.RuntimeOptions{DoNotCheckRuntimeOnInit: true}); err != nil {
		return nil, fmt.Errorf("HAProxy socket %s: %w", path, err)
	}
	return s, nil
}

// ask sends one line and returns the answer, whole. The library treats a broken connection as the
// end of the answer. The line therefore also asks for the generation, which comes last. An answer
// without the generation is incomplete.
//
// If an old worker answers, ask sends the line again, until the worker that took over answers.
func (w worker) ask(line string) (answer string, err error) {
	err = untilTaken(func() error {
		answer, err = w.exchange(line + ";get var proc.gen")
		if err != nil {
			return err
		}
		i := strings.LastIndex(answer, genIs)
		if i < 0 {
			return errors.New("HAProxy's worker: the answer is incomplete")
		}
		return notReplaced(quoted(answer[i:]))
	})
	return answer, err
}

// exchange sends text on a connection of its own, and returns the answer.
func (w worker) exchange(text string) (string, error) {
	answer, err := w.sock.ExecuteRaw(text)
	if err != nil {
		return "", fmt.Errorf("HAProxy's worker: %w", err)
	}
	return answer, nil
}

// genIs begins the answer to "get var proc.gen", and the value follows.
const genIs = "proc.gen: type=str value=<"

// quoted returns the text between the first < and the next >.
func quoted(answer string) string {
	_, after, _ := strings.Cut(answer, "<")
	value, _, _ := strings.Cut(after, ">")
	return value
}

// read sends one line as ask does, and fails if the answer shows a fault.
func (w worker) read(line string) (string, error) {
	answer, err := w.ask(line)
	if err == nil {
		err = fault(answer)
	}
	return answer, err
}

// tell runs commands in batches and fails if the answer to any shows a fault. It tries all
// commands.
func (w worker) tell(cmds []string) error {
	var errs []error
	for batch := range batches(cmds) {
		if _, err := w.read(strings.Join(batch, ";")); err != nil {
			errs = append(errs, fmt.Errorf("%w (%s)", err, shorten(batch)))
		}
	}
	return errors.Join(errs...)
}

func shorten(batch []string) string {
	if len(batch) == 1 {
		return batch[0]
	}
	return fmt.Sprintf("one of %d commands from %q to %q", len(batch), batch[0], batch[len(batch)-1])
}

// send runs one command with a payload. No other command may follow on its line, so the answer must
// contain proof to count as complete.
func (w worker) send(cmd, payload, proof string) error {
	answer, err := w.pass(cmd, strings.TrimRight(payload, "\n")+"\n")
	if err != nil {
		return err
	}
	if err := fault(answer); err != nil {
		return fmt.Errorf("%w (%s)", err, cmd)
	}
	if !strings.Contains(answer, proof) {
		return fmt.Errorf("HAProxy's worker: %s: unexpected answer %q", cmd, answer)
	}
	return nil
}

// pass runs one command with a payload, and returns the answer. If an old worker answers, pass
// runs the command again, as ask does.
func (w worker) pass(cmd, payload string) (answer string, err error) {
	err = untilTaken(func() error {
		answer, err = w.exchange("get var proc.gen;" + cmd + " <<\n" + payload)
		_, after, known := strings.Cut(answer, genIs)
		if err != nil || !known {
			return err
		}
		gen, _, _ := strings.Cut(after, ">")
		return notReplaced(gen)
	})
	return answer, err
}

// verdicts returns the line of an answer for each of several commands.
func verdicts(answer string) (all []string) {
	for line := range strings.Lines(answer) {
		if len(line) > 4 && line[0] == '[' && line[2:4] == "]:" && !strings.Contains(line, "proc.gen") {
			all = append(all, strings.TrimSpace(line[4:]))
		}
	}
	return all
}

// batches splits a list of commands into batches that fit on a line for HAProxy.
func batches(cmds []string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		start, size := 0, 0
		for i, c := range cmds {
			if i > start && (size+len(c)+1 > maxLine || i-start == maxBatch) {
				if !yield(cmds[start:i]) {
					return
				}
				start, size = i, 0
			}
			size += len(c) + 1
		}
		if start < len(cmds) {
			yield(cmds[start:])
		}
	}
}

// errFault says that the worker rejected a command.
var errFault = errors.New("HAProxy's worker")

// fault returns the first complaint in an answer with severity numbers. Numbers from 0 to 3 are
// errors. HAProxy reports an unknown command as 6, an information.
func fault(answer string) error {
	for line := range strings.Lines(answer) {
		line = strings.TrimSpace(line)
		if len(line) < 4 || line[0] != '[' || line[2] != ']' || line[3] != ':' {
			continue
		}
		text := strings.TrimSpace(line[4:])
		if line[1] <= '3' || strings.HasPrefix(text, "Unknown command") {
			return fmt.Errorf("%w: %s", errFault, text)
		}
	}
	return nil
}

// picture holds the state of the worker, as one exchange has returned it.
type picture struct {
	pid, uptime int // seconds
	version     string
	gen, shape  string
	classes     []string // classes with a section of defaults in the worker; HAProxy before 3.4 has none
	backends    LiveBackends

	connections, maxConn int // of clients, and how many the worker accepts
	busiest              int // connections to the server that has the most, including idle ones
}

// lookTimeout bounds a reading of the whole worker.
const lookTimeout = 30 * time.Second

// look reads the whole worker, on a connection of its own. The answer of 10,000 backends has 2 MB,
// and commands need not wait for it. The result keeps no part of the answer in memory. If an old
// worker answers, look reads again, as ask does.
func (w worker) look() (seen picture, err error) {
	err = untilTaken(func() error {
		if seen, err = w.lookOnce(); err != nil {
			return err
		}
		return notReplaced(seen.gen)
	})
	return seen, err
}

// lookOnce reads whichever worker accepts the connection.
func (w worker) lookOnce() (picture, error) {
	conn, err := net.DialTimeout("unix", w.path, lookTimeout)
	if err != nil {
		return picture{}, fmt.Errorf("HAProxy's worker: %w", err)
	}
	defer conn.Close() //nolint:errcheck // all is read
	if err := conn.SetDeadline(time.Now().Add(lookTimeout)); err != nil {
		return picture{}, fmt.Errorf("HAProxy's worker: %w", err)
	}
	if _, err := fmt.Fprintln(conn,
		"show info;get var proc.shape;get var proc.classes;show backend;show servers state;show servers conn;get "+
			"var proc.gen"); err != nil {
		return picture{}, fmt.Errorf("HAProxy's worker: %w", err)
	}
	r := reading{backends: map[string]*LiveBackend{}}
	var words []string
	for in := bufio.NewReaderSize(&gentle{Conn: conn}, statsLine); ; {
		read, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return r.end()
		}
		if err != nil {
			return picture{}, fmt.Errorf("HAProxy's worker: %w", err)
		}
		line := string(bytes.TrimRight(read, "\n"))
		words = slices.AppendSeq(words[:0], strings.FieldsSeq(line))
		if err := r.line(line, words); err != nil {
			return picture{}, err
		}
	}
}

// A reading holds the part of the answer to look that has been read so far.
type reading struct {
	picture  picture
	backends map[string]*LiveBackend
	table    string // the first column of the table that is being read
	columns  connColumns
	whole    bool // the last answer has come
}

// line reads one line, which has these words.
func (r *reading) line(line string, words []string) error {
	switch {
	case strings.Contains(line, genIs): // the last answer
		r.picture.gen, r.whole = quoted(line), true
	case len(words) == 0:
		r.table = ""
	case words[0] == "#" && len(words) > 1:
		r.table, r.columns = words[1], connColumnsOf(words[1:])
	case strings.Contains(line, "proc.shape: type=str value=<"):
		_, after, _ := strings.Cut(line, "<")
		r.picture.shape, _, _ = strings.Cut(after, ">")
	case strings.Contains(line, "proc.classes: type=str value=<"):
		_, after, _ := strings.Cut(line, "<")
		names, _, _ := strings.Cut(after, ">")
		r.picture.classes = strings.Split(names, ".")
	case r.table == "name":
		r.backends[strings.Clone(words[0])] = &LiveBackend{}
	case r.table == "be_id" && len(words) >= 19 && (ownBackend(words[1]) || words[3] == fcgiServer):
		// not ours to open and close
	case r.table == "be_id" && len(words) >= 19:
		return r.server(words)
	case r.table == "bkname/svname" && r.columns.in(words):
		r.connectionsTo(words)
	case words[0] == "Pid:" && len(words) > 1:
		r.picture.pid, _ = strconv.Atoi(words[1])
	case words[0] == "Uptime_sec:" && len(words) > 1:
		r.picture.uptime, _ = strconv.Atoi(words[1])
	case words[0] == "CurrConns:" && len(words) > 1:
		r.picture.connections, _ = strconv.Atoi(words[1])
	case words[0] == "Maxconn:" && len(words) > 1:
		r.picture.maxConn, _ = strconv.Atoi(words[1])
	case words[0] == "Version:" && len(words) > 1:
		r.picture.version = words[1]
	}
	return nil
}

// server reads a row of "show servers state".
func (r *reading) server(words []string) error {
	live, err := serverState(words)
	if err != nil {
		return err
	}
	b := r.backends[words[1]]
	if b == nil {
		return fmt.Errorf("HAProxy's worker: server %s is in a backend that \"show backend\" does not list",
			words[1]+"/"+live.Name)
	}
	b.Servers = append(b.Servers, live)
	return nil
}

// connColumns are the places of columns in "show servers conn": of the connections in use, and of those
// kept for later requests. HAProxy 3.4 has more columns before them than 3.2.
type connColumns struct{ used, idle int }

func connColumnsOf(names []string) connColumns {
	return connColumns{slices.Index(names, "used_cur"), slices.Index(names, "idle_cur")}
}

// in reports whether a row has both columns.
func (c connColumns) in(words []string) bool {
	return min(c.used, c.idle) >= 0 && max(c.used, c.idle) < len(words)
}

// connectionsTo reads a row of "show servers conn".
func (r *reading) connectionsTo(words []string) {
	used, _ := strconv.Atoi(words[r.columns.used])
	idle, _ := strconv.Atoi(words[r.columns.idle])
	r.picture.busiest = max(r.picture.busiest, used+idle)
	backend, server, _ := strings.Cut(words[0], "/")
	if b := r.backends[backend]; b != nil && used > 0 {
		if i := slices.IndexFunc(b.Servers, func(l Live) bool { return l.Name == server }); i >= 0 {
			b.Servers[i].Sessions = used
		}
	}
}

// idle returns how many connections to these addresses the worker keeps for later requests.
func (w worker) idle(of func(at netip.AddrPort, source netip.Addr) bool) (n int, err error) {
	answer, err := w.ask("show servers conn")
	if err != nil {
		return 0, err
	}
	columns := connColumnsOf(nil)
	for line := range strings.Lines(answer) {
		words := strings.Fields(line)
		if len(words) > 0 && words[0] == "#" {
			columns = connColumnsOf(words[1:])
			continue
		}
		if len(words) < 4 || !columns.in(words) {
			continue
		}
		addr, err := netip.ParseAddr(words[2])
		port, portErr := strconv.ParseUint(words[3], 10, 16)
		if err == nil && portErr == nil && of(netip.AddrPortFrom(addr, uint16(port)), sourceOf(words[0])) {
			count, _ := strconv.Atoi(words[columns.idle])
			n += count
		}
	}
	return n, nil
}

// end returns the picture once everything is read.
func (r *reading) end() (picture, error) {
	if !r.whole {
		return picture{}, errors.New("HAProxy's worker: the answer is incomplete")
	}
	if r.picture.pid == 0 {
		return picture{}, errors.New("HAProxy's worker: the answer to \"show info\" has no Pid")
	}
	for _, b := range r.backends {
		slices.SortFunc(b.Servers, func(a, b Live) int { return strings.Compare(a.Name, b.Name) })
	}
	r.picture.backends = NewLiveBackends(r.backends)
	return r.picture, nil
}

// atLeast3 reports whether the worker is of version 3.minor or newer.
func (p picture) atLeast3(minor int) bool {
	var x, y int
	_, err := fmt.Sscanf(p.version, "%d.%d", &x, &y)
	return err == nil && (x > 3 || x == 3 && y >= minor)
}

// Bits of srv_admin_state and srv_check_state (HAProxy manual, management,
// "show servers state"; HAProxy's include/haproxy/server-t.h and check-t.h).
const (
	adminMaint      = 0x01 | 0x02 | 0x20 | 0x40 // not 0x04, which only remembers "disabled" in the file
	adminDrain      = 0x08 | 0x10
	checkConfigured = 0x02
)

// checkFailures names the values of srv_check_status that are failures, as HAProxy's
// statistics do (HAProxy's include/haproxy/check-t.h).
var checkFailures = map[string]string{
	"4": "HANA", "5": "SOCKERR", "7": "L4TOUT", "8": "L4CON", "10": "L6TOUT", "11": "L6RSP", "12": "L7TOUT",
	"13": "L7RSP", "17": "L7STS",
}

// serverState reads one line of "show servers state".
func serverState(words []string) (Live, error) {
	port, err1 := strconv.ParseUint(words[18], 10, 16)
	admin, err2 := strconv.Atoi(words[6])
	check, err3 := strconv.Atoi(words[13])
	weight, err4 := strconv.Atoi(words[7])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return Live{}, fmt.Errorf("HAProxy's worker: state of %s/%s: %w", words[1], words[3], err)
	}
	live := Live{Name: strings.Clone(words[3]), Source: sourceOf(words[3]), State: Open, Check: Up, Weight: weight}
	if ip, err := netip.ParseAddr(words[4]); err == nil {
		live.Addr = netip.AddrPortFrom(ip, uint16(port))
	}
	switch {
	case admin&adminMaint != 0:
		live.State = Closed
	case admin&adminDrain != 0:
		live.State = Drain
	}
	switch {
	case check&checkConfigured == 0, live.State == Closed:
		live.Check = Unchecked
	case words[5] == "0":
		live.Check, live.Failure = Down, checkFailures[words[10]]
	}
	return live, nil
}

// table reads a map from the worker, sorted by key.
func (w worker) table(path string) ([]row, error) {
	answer, err := w.read("show map " + path)
	if err != nil {
		return nil, err
	}
	var out []row
	for line := range strings.Lines(answer) {
		words := strings.Split(strings.TrimRight(line, "\n"), " ")
		if len(words) == 3 && strings.HasPrefix(words[0], "0x") {
			out = append(out, row{words[1], words[2]})
		}
	}
	slices.SortFunc(out, func(a, b row) int { return strings.Compare(a.key, b.key) })
	return out, nil
}

// replaceMap replaces the whole map at once. Requests see the old rows or the new rows, never a
// mixture.
func (w worker) replaceMap(path string, want []row) error {
	answer, err := w.read("prepare map " + path)
	if err != nil {
		return err
	}
	_, after, ok := strings.Cut(answer, "New version created: ")
	if !ok {
		return fmt.Errorf("HAProxy's worker: prepare map %s: unexpected answer %q", path, answer)
	}
	version := strings.Fields(after)[0]
	var payload strings.Builder
	flush := func() error {
		if payload.Len() == 0 {
			return nil
		}
		answer, err := w.pass("add map @"+version+" "+path, payload.String())
		payload.Reset()
		if err != nil {
			return err
		}
		return fault(answer)
	}
	for _, r := range want {
		if payload.Len()+len(r.key)+len(r.value)+2 > maxLine {
			if err := flush(); err != nil {
				return err
			}
		}
		payload.WriteString(r.key + " " + r.value + "\n")
	}
	if err := flush(); err != nil {
		return err
	}
	// An answer to a payload may be incomplete, so the rows are counted before they are used.
	got, err := w.table("@" + version + " " + path)
	if err != nil {
		return err
	}
	if len(got) != len(want) {
		return fmt.Errorf("HAProxy's worker: map %s got %d of %d rows", path, len(got), len(want))
	}
	return w.tell([]string{"commit map @" + version + " " + path})
}

// A crtLine is an entry of the worker's crt-list.
type crtLine struct {
	number string
	text   string // as certEntry.line
}

// certLines reads the crt-list from the worker, by file.
func (w worker) certLines(list string) (map[string][]crtLine, error) {
	answer, err := w.read("show ssl crt-list -n " + list)
	if err != nil {
		return nil, err
	}
	out := make(map[string][]crtLine)
	for line := range strings.Lines(answer) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0][0] != '/' {
			continue
		}
		file, number := cutLast(words[0], ":")
		words[0] = file
		out[file] = append(out[file], crtLine{number, strings.Join(words, " ")})
	}
	return out, nil
}

func cutLast(s, sep string) (before, after string) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):]
	}
	return s, ""
}

// certFiles lists the certificates the worker holds.
func (w worker) certFiles() (map[string]bool, error) {
	answer, err := w.read("show ssl cert")
	if err != nil {
		return nil, err
	}
	out := make(map[string]bool)
	for line := range strings.Lines(answer) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") {
			out[line] = true
		}
	}
	return out, nil
}

// setCert gives the worker the content of a certificate file. Later handshakes use it.
func (w worker) setCert(path string, pem []byte, isNew bool) error {
	if isNew {
		if err := w.tell([]string{"new ssl cert " + path}); err != nil {
			return err
		}
	}
	err := w.send("set ssl cert "+path, string(pem), "Transaction")
	if err == nil {
		var answer string
		answer, err = w.ask("commit ssl cert " + path)
		if err == nil && !strings.Contains(answer, "Success!") {
			err = fmt.Errorf("%w: commit ssl cert %s: %s", errFault, path, strings.Join(strings.Fields(answer), " "))
		}
	}
	if err != nil {
		// An open transaction would prevent the next transaction.
		_, _ = w.ask("abort ssl cert " + path)
	}
	return err
}

// listCerts makes the lines of the crt-list equal to want, by file in dir, except
// those of fixed certificates. It adds the new line of a file before it removes the
// old one, so that every handshake finds the name.
func (w worker) listCerts(list, dir string, want map[string]string) error {
	have, err := w.certLines(list)
	if err != nil {
		return err
	}
	for file, line := range want {
		if !slices.ContainsFunc(have[file], func(l crtLine) bool { return l.text == line }) {
			if err := w.send("add ssl crt-list "+list, line, "Success!"); err != nil {
				return err
			}
		}
	}
	var cmds []string
	for file, lines := range have {
		for _, l := range lines {
			if !fixed(strings.TrimPrefix(file, dir)) && l.text != want[file] {
				cmds = append(cmds, "del ssl crt-list "+list+" "+file+":"+l.number)
			}
		}
	}
	return w.tell(cmds)
}
