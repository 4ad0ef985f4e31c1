package haproxy

import (
	"net"
	"time"
)

// A gentle connection leaves HAProxy pauses while it reads a long answer. HAProxy adds and
// removes servers only while none of its threads does anything else, and a thread that answers
// goes on as long as the answer is read at once: "add server" then waits for all of it (HAProxy
// 2.6 with 10,000 backends: 15 to 26 ms for each table on idle cores, and 0.1 s on busy ones).
type gentle struct {
	net.Conn
	read int // bytes since the last pause
}

const (
	gentlePiece = 64 << 10 // bytes
	gentlePause = 2 * time.Millisecond
)

func (g *gentle) Read(b []byte) (int, error) {
	if g.read >= gentlePiece {
		<-time.After(gentlePause)
		g.read = 0
	}
	n, err := g.Conn.Read(b[:min(len(b), gentlePiece-g.read)])
	g.read += n
	return n, err
}
