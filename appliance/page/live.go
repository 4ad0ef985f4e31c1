package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	// viewers bounds the streams at once. A page without a stream reloads itself.
	viewers = 16
	// beat is the time between two looks for a viewer. A page that takes longer to draw
	// is drawn less often, so that viewers cost a bounded part of one processor.
	beat = time.Second
	// patience bounds how long a viewer that reads nothing holds its place.
	patience = 10 * time.Second
	// hum is the time after which a stream without news says that it is alive.
	hum = 15 * time.Second
)

// change is what a viewer has to replace. Sections are by ID; Main replaces all of them.
type change struct {
	Title    string            `json:"title"`
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
	if s.viewers.Add(1) > viewers {
		s.viewers.Add(-1)
		// 204 tells an EventSource not to come back.
		w.WriteHeader(http.StatusNoContent)
		return
	}
	defer s.viewers.Add(-1)
	ask := r.Clone(r.Context())
	ask.URL = at
	stream := http.NewResponseController(w)
	var ids string // of the sections that the viewer has; empty: it has none
	shown, told := map[string]string{}, time.Now()
	for {
		title, now, fragments, took, err := s.draw(ask)
		switch {
		case err != nil && ids == "":
			w.WriteHeader(http.StatusNoContent)
			return
		case err != nil:
			return // the browser asks again, and learns that the page is gone
		}
		w.Header().Set("Content-Type", "text/event-stream")
		news := change{Title: title, Sections: map[string]string{}}
		for id, html := range fragments {
			if shown[id] != html {
				news.Sections[id] = html
			}
		}
		if order := strings.Join(now, " "); ids != "" && order != ids {
			var all strings.Builder
			for _, id := range now[1:] {
				all.WriteString(fragments[id])
			}
			text := all.String()
			news = change{Title: title, Main: &text, Sections: map[string]string{"head": fragments["head"]}}
		}
		ids, shown = strings.Join(now, " "), fragments
		text := []byte(": still here\n\n")
		if len(news.Sections) > 0 {
			if text, err = json.Marshal(news); err != nil {
				return
			}
			text = fmt.Appendf(nil, "data: %s\n\n", text)
		}
		if len(news.Sections) > 0 || time.Since(told) > hum {
			told = time.Now()
			_ = stream.SetWriteDeadline(told.Add(patience))
			if _, err := w.Write(text); err != nil {
				return
			}
			if err := stream.Flush(); err != nil {
				return
			}
		}
		rest := time.NewTimer(max(beat, 30*took))
		select {
		case <-r.Context().Done():
			rest.Stop()
			return
		case <-rest.C:
		}
	}
}

var errGone = errors.New("there is no such page")

// draw returns the title of a page and its sections, by ID and in their order, and how long it
// took to make them. Streams draw one at a time: they leave the other processors to the loop.
func (s *Site) draw(r *http.Request) (title string, ids []string, html map[string]string, took time.Duration, err error) {
	s.drawing.Lock()
	defer s.drawing.Unlock()
	begin := time.Now()
	p, ok := s.Page(r)
	if !ok {
		return "", nil, nil, 0, errGone
	}
	ids, html, err = p.fragments()
	return strings.TrimSpace(p.Mark.Symbol() + " " + p.Title), ids, html, time.Since(begin), err
}
