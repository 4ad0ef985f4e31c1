package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

const (
	// viewers bounds the streams at once. A page without a stream reloads itself.
	viewers = 16
	// viewersEach bounds the streams to one address, so that nobody takes all the room.
	viewersEach = 4
	// beat is the time between two looks for a viewer. A page that takes longer to draw
	// is drawn less often, so that viewers cost a bounded part of one processor.
	beat = time.Second
	// patience bounds how long a viewer that reads nothing holds its place.
	patience = 10 * time.Second
	// hum is the time after which a stream without news says that what it has shown holds still.
	hum = 15 * time.Second
)

// A change holds the parts of a page that a viewer has to replace. Sections are by ID; Main
// replaces all of them.
type change struct {
	Title    string            `json:"title"`
	AsOf     string            `json:"asOf"`
	Main     *string           `json:"main,omitempty"`
	Sections map[string]string `json:"sections,omitempty"`
}

// Live streams the sections of a page that change, as server-sent events, until the
// viewer leaves. ?page= is the address of the page. The first event has every section,
// because some may have changed since the page was drawn.
func (s *Site) Live(w http.ResponseWriter, r *http.Request) {
	at, err := url.ParseRequestURI(r.URL.Query().Get("page"))
	if err != nil || at.Host != "" {
		http.Error(w, "page has to be the address of a page, such as /", http.StatusBadRequest)
		return
	}
	leave, may := s.enter(r.RemoteAddr)
	if !may {
		// 204 tells an EventSource not to come back.
		w.WriteHeader(http.StatusNoContent)
		return
	}
	defer leave()
	ask := r.Clone(r.Context())
	ask.URL = at
	stream := http.NewResponseController(w)
	var ids string // of the sections that the viewer has; empty before the first event
	shown, told := map[string]string{}, time.Now()
	for {
		d, err := s.draw(ask)
		switch {
		case err != nil && ids == "":
			w.WriteHeader(http.StatusNoContent)
			return
		case err != nil:
			return // the browser asks again, and learns that the page is gone
		}
		w.Header().Set("Content-Type", "text/event-stream")
		news := change{Title: d.title, AsOf: d.asOf, Sections: map[string]string{}}
		for id, html := range d.html {
			if shown[id] != html {
				news.Sections[id] = html
			}
		}
		if order := strings.Join(d.ids, " "); ids != "" && order != ids {
			var all strings.Builder
			for _, id := range d.ids[1:] {
				all.WriteString(d.html[id])
			}
			text := all.String()
			news.Main, news.Sections = &text, map[string]string{"head": d.html["head"]}
		}
		ids, shown = strings.Join(d.ids, " "), d.html
		if len(news.Sections) > 0 || time.Since(told) > hum {
			text, err := json.Marshal(news)
			if err != nil {
				return
			}
			told = time.Now()
			_ = stream.SetWriteDeadline(told.Add(patience))
			if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil {
				return
			}
			if err := stream.Flush(); err != nil {
				return
			}
		}
		rest := time.NewTimer(max(beat, 30*d.took))
		select {
		case <-r.Context().Done():
			rest.Stop()
			return
		case <-rest.C:
		}
	}
}

// enter counts a stream to an address. It reports whether there is room for it, and if so,
// leave ends it. Addresses of one /64 count together: any host there can have all of them.
func (s *Site) enter(address string) (leave func(), may bool) {
	host, _, _ := net.SplitHostPort(address)
	addr, _ := netip.ParseAddr(host)
	addr = addr.Unmap().WithZone("")
	from, _ := addr.Prefix(min(addr.BitLen(), 64))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= viewers || s.viewers[from] >= viewersEach {
		return nil, false
	}
	if s.viewers == nil {
		s.viewers = make(map[netip.Prefix]int)
	}
	s.open++
	s.viewers[from]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
		if s.viewers[from]--; s.viewers[from] == 0 {
			delete(s.viewers, from)
		}
	}, true
}

var errGone = errors.New("there is no such page")

// A drawing is a page as a viewer gets it.
type drawing struct {
	title, asOf string
	ids         []string          // of the sections, in their order
	html        map[string]string // of each section
	took        time.Duration     // to draw it
}

// draw draws a page. Streams draw one at a time: they leave the other processors to the loop.
func (s *Site) draw(r *http.Request) (d drawing, err error) {
	s.drawing.Lock()
	defer s.drawing.Unlock()
	begin := time.Now()
	p, ok := s.Page(r)
	if !ok {
		return d, errGone
	}
	d.title, d.asOf = strings.TrimSpace(p.Mark.Symbol()+" "+p.Title), p.AsOf
	d.ids, d.html, err = p.fragments()
	d.took = time.Since(begin)
	return d, err
}
