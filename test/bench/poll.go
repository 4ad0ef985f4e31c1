package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
)

// pollArg makes this program the poller: a process on the client's host that
// reads lines of hosts, asks 192.168.50.21 for each until it answers 200, and
// writes the time at which the last of a line did, in nanoseconds.
const pollArg = "poll"

func poll() {
	client := &http.Client{Timeout: 2 * time.Second}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		for host := range strings.FieldsSeq(in.Text()) {
			tick := time.NewTicker(time.Millisecond)
			for !served(client, host) {
				<-tick.C
			}
			tick.Stop()
		}
		fmt.Println(time.Now().UnixNano())
	}
}

func served(client *http.Client, host string) bool {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://192.168.50.21/bytes?n=1", nil)
	if err != nil {
		return false
	}
	req.Host = host
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	return resp.StatusCode == http.StatusOK
}
