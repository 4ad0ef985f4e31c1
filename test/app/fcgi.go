package main

import (
	"bufio"
	"net"
	"net/http"
	"net/http/fcgi"
	"sync"
	"time"
)

// scriptHeader is the header in which a request over FastCGI shows its SCRIPT_FILENAME.
const scriptHeader = "X-Script"

// scripted returns a handler for requests over FastCGI.
func scripted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set(scriptHeader, fcgi.ProcessEnv(r)["SCRIPT_FILENAME"])
		r.RequestURI = r.URL.RequestURI()
		h.ServeHTTP(w, r)
	})
}

// A sorter is a listener without the connections that speak FastCGI, which go to scripts.
type sorter struct {
	net.Listener
	plain, scripts queue
}

// sorted returns a sorter. It sorts until the listener closes.
func sorted(l net.Listener) *sorter {
	s := &sorter{Listener: l, plain: newQueue(l), scripts: newQueue(l)}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				s.plain.end()
				s.scripts.end()
				return
			}
			go s.sort(c)
		}
	}()
	return s
}

// sort passes a connection on. Its first byte is that of a version of FastCGI, or of a method of HTTP.
func (s *sorter) sort(c net.Conn) {
	in := bufio.NewReader(c)
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	first, err := in.Peek(1)
	_ = c.SetReadDeadline(time.Time{})
	to := s.plain
	if err == nil && first[0] == 1 {
		to = s.scripts
	}
	to.put(peeked{c, in})
}

func (s *sorter) Accept() (net.Conn, error) { return s.plain.Accept() }

// A queue is a listener of the connections that are put into it.
type queue struct {
	net.Listener
	come chan net.Conn
	done chan struct{}
	once *sync.Once
}

func newQueue(l net.Listener) queue {
	return queue{l, make(chan net.Conn), make(chan struct{}), new(sync.Once)}
}

func (q queue) end() { q.once.Do(func() { close(q.done) }) }

func (q queue) put(c net.Conn) {
	select {
	case q.come <- c:
	case <-q.done:
		_ = c.Close()
	}
}

func (q queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.come:
		return c, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

// A peeked is a connection with the bytes that were read ahead.
type peeked struct {
	net.Conn
	in *bufio.Reader
}

func (p peeked) Read(b []byte) (int, error) { return p.in.Read(b) }
