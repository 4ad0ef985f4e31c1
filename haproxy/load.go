package haproxy

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Load is what the worker has counted. A reload starts the counters again.
type Load struct {
	Requests uint64        // by HTTP, of clients
	Failed   uint64        // of those, answered with a status from 500 to 599
	Response time.Duration // from the request to the first byte of the answer: the mean of the backends that had requests since the Load before, by their requests; negative: there was no request

	backends map[string]uint64 // requests
}

// Load reads the counters of the worker. It takes no lock, so it delays no Apply. The
// cost grows with the backends: some 250 bytes each.
func (p *Proxy) Load(before Load) (Load, error) {
	const frontends, backends = 1, 2
	answer, err := p.worker.sock.ExecuteRaw(fmt.Sprintf("show stat -1 %d -1", frontends|backends))
	if err != nil {
		return Load{}, fmt.Errorf("HAProxy's worker: %w", err)
	}
	t, err := readLoad(answer, before)
	if err != nil {
		return Load{}, fmt.Errorf("HAProxy's worker: the statistics: %w", err)
	}
	return t, nil
}

// readLoad reads statistics in the form of HAProxy's manual (management, 9.1).
func readLoad(answer string, before Load) (Load, error) {
	// The library may leave the number of the severity before the answer.
	_, answer, found := strings.Cut(answer, "# ")
	if !found {
		return Load{}, errors.New("they have no heading")
	}
	r := csv.NewReader(strings.NewReader(answer))
	r.FieldsPerRecord, r.ReuseRecord, r.LazyQuotes = -1, true, true
	heading, err := r.Read()
	if err != nil {
		return Load{}, err
	}
	column := map[string]int{}
	for i, name := range heading {
		column[name] = i
	}
	t := Load{backends: make(map[string]uint64, len(before.backends))}
	var weight, sum float64
	for {
		row, err := r.Read()
		switch {
		case errors.Is(err, io.EOF):
			t.Response = -1
			if weight > 0 {
				t.Response = time.Duration(sum / weight * float64(time.Millisecond))
			}
			return t, nil
		case err != nil:
			return Load{}, err
		}
		number := func(name string) uint64 {
			i, ok := column[name]
			if !ok || i >= len(row) {
				return 0
			}
			n, _ := strconv.ParseUint(row[i], 10, 64) // empty where it does not apply
			return n
		}
		if len(row) < 2 {
			continue
		}
		switch row[1] {
		case "FRONTEND":
			t.Requests += number("req_tot")
			t.Failed += number("hrsp_5xx")
		case "BACKEND":
			name, requests := strings.Clone(row[0]), number("req_tot")
			t.backends[name] = requests
			if was := before.backends[name]; requests >= was {
				requests -= was
			}
			weight += float64(requests)
			sum += float64(requests) * float64(number("rtime"))
		}
	}
}
