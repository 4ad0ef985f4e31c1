package main

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // RFC 6455 asks for it
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Opcodes of RFC 6455, section 5.2.
const (
	opClose = 8
	opPing  = 9
	opPong  = 10
)

const maxFrame = 1 << 20

// socket upgrades to a WebSocket and echoes every message, until the client closes it.
func (a *app) socket(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Sec-WebSocket-Key")
	if key == "" || !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || r.ProtoMajor != 1 {
		w.Header().Set("Upgrade", "websocket")
		http.Error(w, "this address speaks WebSocket", http.StatusUpgradeRequired)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer conn.Close()
	_, _ = fmt.Fprintf(buffered,
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Pod: %s\r\n"+
			"Sec-WebSocket-Accept: %s\r\n\r\n",
		a.pod, accept(key))
	for buffered.Flush() == nil {
		head, payload, err := readFrame(buffered.Reader)
		if err != nil {
			return
		}
		switch head & 0x0f {
		case opPong:
			continue
		case opPing:
			head = head&0xf0 | opPong
		}
		if writeFrame(buffered.Writer, head, payload) != nil || head&0x0f == opClose {
			_ = buffered.Flush()
			return
		}
	}
}

// accept returns the server's answer to the client's key (RFC 6455, section 4.2.2).
func accept(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // RFC 6455 asks for it
	return base64.StdEncoding.EncodeToString(sum[:])
}

// readFrame reads one frame. It returns the first byte (FIN and opcode) and the unmasked payload.
func readFrame(r *bufio.Reader) (head byte, payload []byte, err error) {
	var two [2]byte
	if _, err := io.ReadFull(r, two[:]); err != nil {
		return 0, nil, err
	}
	if two[1]&0x80 == 0 {
		return 0, nil, errors.New("a client's frame must be masked")
	}
	size := uint64(two[1] & 0x7f)
	if extra := map[uint64]int{126: 2, 127: 8}[size]; extra > 0 {
		var long [8]byte
		if _, err := io.ReadFull(r, long[8-extra:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(long[:])
	}
	if size > maxFrame {
		return 0, nil, errors.New("frame too long")
	}
	var mask [4]byte
	if _, err := io.ReadFull(r, mask[:]); err != nil {
		return 0, nil, err
	}
	payload = make([]byte, size)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, err
	}
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	return two[0], payload, nil
}

// writeFrame writes one unmasked frame, as a server does.
func writeFrame(w *bufio.Writer, head byte, payload []byte) error {
	frame := []byte{head}
	switch n := len(payload); {
	case n < 126:
		frame = append(frame, byte(n))
	case n < 1<<16:
		frame = binary.BigEndian.AppendUint16(append(frame, 126), uint16(n))
	default:
		frame = binary.BigEndian.AppendUint64(append(frame, 127), uint64(n))
	}
	_, err := w.Write(append(frame, payload...))
	return err
}
