package page

import (
	"net/http"
	"net/netip"
	"sync"
)

// policy is the Content-Security-Policy of every answer: nothing but our own style sheet,
// script, icon and stream, forms that lead back to us, and no frame around it.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Secured adds headers to the answers of next: they keep foreign pages from framing ours, and
// browsers from running foreign scripts or guessing content types.
func Secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin") // with no-referrer a form of ours has no Origin
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// A Site answers requests for pages, and for the files that they need.
type Site struct {
	// Page returns the page at an address, or false if the address has no page. It is called from
	// many goroutines.
	Page func(*http.Request) (Page, bool)

	mu      sync.Mutex
	open    int                  // streams
	viewers map[netip.Prefix]int // streams by address, see enter
	drawing sync.Mutex           // held by the stream that draws
}

// ServeHTTP answers a request for a page.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, ok := s.Page(r)
	if !ok {
		p = Page{
			Title: "not found", Mark: Bad, Crumbs: []Link{{"first page", "/"}, {"not found", ""}},
			Sections: []Section{{
				ID: "state", Title: "There is nothing at this address",
				Lines: []Line{{Bad, "It is gone, or it never was: the first page has all that there is now."}},
			}},
		}
	}
	text, err := p.render(r.URL.RequestURI())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if !ok {
		w.WriteHeader(http.StatusNotFound)
	}
	_, _ = w.Write(text) //nolint:gosec // html/template has escaped it
}

// Asset serves a file that pages need: its style sheet, its script, its icon.
func Asset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	types := map[string]string{
		"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8",
		"icon.svg": "image/svg+xml",
	}
	text, err := files.ReadFile(name)
	if err != nil || types[name] == "" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", types[name])
	_, _ = w.Write(text) //nolint:gosec // a file of ours
}
