package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Patience bounds a request that is neither a list nor a watch.
const Patience = 10 * time.Second

// A Server is the address of an API server.
type Server struct {
	Host string // a name or an address
	Port uint16
}

// ServerOf returns the API server of a URL, or of HOST:PORT.
func ServerOf(address string) Server {
	s := Server{Host: address, Port: 443}
	if u, err := url.Parse(address); err == nil && u.Hostname() != "" {
		s.Host = u.Hostname()
		if port, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
			s.Port = uint16(port)
		}
	}
	return s
}

// IsAnswer reports whether an error came from the API server itself.
func IsAnswer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// Refused reports whether an error is an answer that does not change by waiting: the
// appliance may not read the resource, or it does not exist.
func Refused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) }

// Sentence returns the meaning of a failed request, and the remedy.
func (s Server) Sentence(group, resource string, err error) string {
	name := resource
	if group != "" {
		name += "." + group
	}
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("the appliance may not list and watch %s (verbs list, watch; API group %q; resource %s): "+
			"apply what `sallyport manifests` prints", name, group, resource)
	case apierrors.IsUnauthorized(err):
		return "the API server does not accept the credentials of the kubeconfig: the token or certificate expired " +
			"or was revoked; make a new one"
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the API server has no resource %s", name)
	case apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return fmt.Sprintf("the API server returns older %s than before (its etcd was restored from a backup, or it "+
			"lags behind another API server): they are read again", name)
	case IsAnswer(err):
		return fmt.Sprintf("the API server answers a request for %s with an error: %v", name, err)
	case strings.Contains(err.Error(), "x509: ") || strings.Contains(err.Error(), "tls: "):
		return fmt.Sprintf("no TLS with the API server (%s): %v; check the server's name, its CA and the client "+
			"certificate in the kubeconfig", s.Host, Root(err))
	}
	return s.Unanswered(err) + "; the last known objects stay"
}

// Unanswered returns a sentence about a request without an answer: why there is none, and where
// to look.
func (s Server) Unanswered(err error) string {
	how := "does not answer"
	if _, is := errors.AsType[*net.OpError](err); is {
		how = "cannot be reached"
	}
	return fmt.Sprintf("the API server (%s) %s: %v; look whether it runs, and whether a firewall drops port %d",
		s.Host, how, Root(err), s.Port)
}

// Root returns the innermost error. The outer errors repeat the URL, and its parameters change
// with each attempt. A deadline that passed is in words.
func Root(err error) error {
	innermost := err
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		innermost = inner
	}
	if opened, is := errors.AsType[*net.OpError](err); is && opened.Op == "dial" && opened.Timeout() {
		return late{innermost, "no answer to a new connection"}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return late{innermost, fmt.Sprintf("nothing came within %s", Patience)}
	}
	return innermost
}

// late is the error of a deadline, with words for people.
type late struct {
	error
	words string
}

func (l late) Error() string { return l.words }
func (l late) Unwrap() error { return l.error }
func (l late) Timeout() bool { return true }
