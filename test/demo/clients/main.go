// Command clients asks a web server all the time, and counts what a person at a browser would
// notice: requests on new connections that fail, and kept connections that break. It prints a
// line a second until it is interrupted.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// patience is the longest that a client waits for an answer.
const patience = 5 * time.Second

type counters struct{ sent, failed, asked, broken atomic.Int64 }

func (c *counters) String() string {
	return fmt.Sprintf("new connections %5d, failed %d   requests on kept ones %5d, broken %d", c.sent.Load(), c.failed.Load(), c.asked.Load(), c.broken.Load())
}

func main() {
	address := flag.String("address", "203.0.113.10:80", "where to connect")
	host := flag.String("host", "test.local", "the host of the requests")
	kept := flag.Int("kept", 50, "connections that are kept, each with a request every 0.3 s")
	every := flag.Duration("every", 10*time.Millisecond, "time from one new connection to the next")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var c counters
	var all sync.WaitGroup
	for range *kept {
		all.Go(func() { keep(ctx, &c, *address, *host) })
	}
	all.Go(func() {
		for tick := time.Tick(*every); wait(ctx, tick); {
			all.Go(func() {
				err := one(ctx, *address, *host)
				if c.sent.Add(1); err != nil && ctx.Err() == nil {
					c.failed.Add(1)
				}
			})
		}
	})
	for tick := time.Tick(time.Second); wait(ctx, tick); {
		fmt.Println("    clients:", &c)
	}
	all.Wait()
	fmt.Println("    clients, in the end:", &c)
}

// wait reports whether the next tick came before the end.
func wait(ctx context.Context, tick <-chan time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-tick:
		return true
	}
}

// one sends a request on a connection of its own.
func one(ctx context.Context, address, host string) error {
	conn, err := dial(ctx, address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = ask(conn, bufio.NewReader(conn), host, "Connection: close\r\n")
	return err
}

// keep asks on one connection as long as it lasts, then on the next.
func keep(ctx context.Context, c *counters, address, host string) {
	var conn net.Conn
	var in *bufio.Reader
	for tick := time.Tick(300 * time.Millisecond); wait(ctx, tick); {
		if conn == nil {
			var err error
			if conn, err = dial(ctx, address); err != nil {
				conn = nil
				continue // the new connections count that
			}
			in = bufio.NewReader(conn)
		}
		closes, err := ask(conn, in, host, "")
		if c.asked.Add(1); err != nil {
			c.broken.Add(1)
		}
		if closes || err != nil {
			_ = conn.Close()
			conn = nil
		}
	}
	if conn != nil {
		_ = conn.Close()
	}
}

func dial(ctx context.Context, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

// ask sends a request, and reports whether the server closes the connection after its answer.
func ask(conn net.Conn, in *bufio.Reader, host, header string) (closes bool, err error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return false, err
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: "+host+"\r\n"+header+"\r\n"); err != nil {
		return false, err
	}
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = answer.Body.Close() }()
	if _, err = io.Copy(io.Discard, answer.Body); err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return answer.Close, err
}
