package kubelet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// kubeletPort is the port of a kubelet's API.
const kubeletPort = 10250

// logName returns the name of a container's log. Its lines begin with the time at which they were
// read, and a space.
func logName(namespace, pod, container string) string {
	return fmt.Sprintf("%s_%s_%s.log", namespace, pod, container)
}

// stamp copies lines, with the time in front of each, until the last writer has closed its end. It
// splits lines that are too long.
func stamp(to io.Writer, from io.Reader) {
	for lines := bufio.NewReaderSize(from, 64<<10); ; {
		line, _, err := lines.ReadLine()
		if err != nil {
			return
		}
		_, _ = fmt.Fprintf(to, "%s %s\n", time.Now().UTC().Format(time.RFC3339Nano), line)
	}
}

// since copies the lines of a log that were read at a time or later, without their times.
func since(to io.Writer, log io.Reader, begin time.Time) error {
	for lines := bufio.NewReader(log); ; {
		line, err := lines.ReadString('\n')
		if when, text, is := strings.Cut(line, " "); is {
			if at, err := time.Parse(time.RFC3339Nano, when); err == nil && !at.Before(begin) {
				if _, err := io.WriteString(to, text); err != nil {
					return err
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// serve serves the part of a kubelet's API that the lab has: the logs of containers, as the API
// server asks for them. The caller closes it.
func (a *agent) serve(ctx context.Context) (*http.Server, error) {
	var listener net.Listener
	err := within(a.Netns, func() (err error) {
		listener, err = new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf(":%d", kubeletPort))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("serve the kubelet's API: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", a.logs)
	server := &http.Server{Handler: mux, TLSConfig: a.TLS, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	return server, nil
}

// logs answers with the log of a container. The container may have ended.
func (a *agent) logs(w http.ResponseWriter, r *http.Request) {
	var begin time.Time
	for option, values := range r.URL.Query() {
		at, err := time.Parse(time.RFC3339, values[0])
		if option != "sinceTime" || err != nil {
			http.Error(w, fmt.Sprintf("option %s=%s: the lab's kubelet knows sinceTime alone", option, values[0]),
				http.StatusBadRequest)
			return
		}
		begin = at
	}
	root, err := os.OpenRoot(filepath.Join(a.Dir, logsDir))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer root.Close()
	log, err := root.Open(logName(r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")))
	if errors.Is(err, fs.ErrNotExist) {
		http.Error(w, "no such container has run here", http.StatusNotFound)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer log.Close()
	w.Header().Set("Content-Type", "text/plain")
	_ = since(w, log, begin)
}

const logsDir = "logs"
