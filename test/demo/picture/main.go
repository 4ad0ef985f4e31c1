// Picture has Chromium draw a page of the status endpoint of a demo, and writes it as PNG.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"
)

func main() {
	page := flag.String("page", "", "URL of the page")
	certificate := flag.String("certificate", "", "file of the endpoint's certificate, if it speaks TLS")
	password := flag.String("password", "", "file of the endpoint's password, if it asks for one")
	size := flag.String("size", "1280,1000", "`width,height` of the window, in pixels")
	out := flag.String("o", "page.png", "file to write")
	flag.Parse()
	if err := draw(*page, *certificate, *password, *size, *out); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

// draw has Chromium open the page through a proxy on loopback, which knows the password:
// whoever lists processes reads the arguments of Chromium.
func draw(page, certificate, password, size, out string) error {
	to, err := url.Parse(page)
	if err != nil {
		return err
	}
	trusted := x509.NewCertPool()
	if certificate != "" {
		pem, err := os.ReadFile(certificate)
		if err != nil {
			return err
		}
		if !trusted.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%s has no certificate", certificate)
		}
	}
	var secret []byte
	if password != "" {
		if secret, err = os.ReadFile(password); err != nil {
			return err
		}
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to) // with its host, the only one that the endpoint answers to
			if len(secret) > 0 {
				r.Out.SetBasicAuth("demo", strings.TrimSpace(string(secret)))
			}
		},
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}},
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: proxy, ReadHeaderTimeout: time.Second}
	defer server.Close() //nolint:errcheck // the picture is there, or it is not
	go func() { _ = server.Serve(l) }()
	profile, err := os.MkdirTemp("", "picture")
	if err != nil {
		return err
	}
	defer os.RemoveAll(profile)
	said, err := exec.Command("timeout", "60", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", //nolint:noctx // timeout ends it
		"--user-data-dir="+profile, "--window-size="+size, "--screenshot="+out,
		"http://"+l.Addr().String()+"/").CombinedOutput()
	if err != nil {
		return errors.Join(err, errors.New(strings.TrimSpace(string(said))))
	}
	_, err = os.Stat(out) // Chromium reports success without a picture, too
	return err
}
