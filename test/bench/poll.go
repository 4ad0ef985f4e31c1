package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// pollArg makes this program the poller, a process on the client's host. It reads lines of host
// names, sends requests until every host of a line has answered 200, and prints the time of the last
// such answer in nanoseconds. A host may have an address after "@"; without one it is asked for at
// 192.168.50.21.
const pollArg = "poll"

func poll() {
	client := &http.Client{Timeout: 2 * time.Second}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		hosts := strings.Fields(in.Text())
		var askers sync.WaitGroup
		for part := range slices.Chunk(hosts, (len(hosts)+3)/4) {
			askers.Go(func() {
				for _, host := range part {
					tick := time.NewTicker(time.Millisecond)
					for !served(client, host) {
						<-tick.C
					}
					tick.Stop()
				}
			})
		}
		askers.Wait()
		fmt.Println(time.Now().UnixNano())
	}
}

func served(client *http.Client, host string) bool {
	host, address, _ := strings.Cut(host, "@")
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet,
		"http://"+cmp.Or(address, "192.168.50.21")+"/bytes?n=1", nil)
	if err != nil {
		return false
	}
	req.Host = host
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	// A body that is read to its end lets the connection serve the next request.
	_, err = io.Copy(io.Discard, resp.Body)
	return err == nil && resp.StatusCode == http.StatusOK
}
