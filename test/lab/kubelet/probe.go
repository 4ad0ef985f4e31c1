package kubelet

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// watch probes until ctx ends, and reports each change of the verdict: good after successThreshold
// successes in a row, bad after failureThreshold failures in a row, with the last failure. good is
// the verdict before the first probe. The API server sets the defaults; a zero counts as the
// smallest sensible value.
func watch(ctx context.Context, p *corev1.Probe, good bool, check func(context.Context) error,
	report func(good bool, why error),
) {
	period := time.Duration(max(p.PeriodSeconds, 1)) * time.Second
	timeout := time.Duration(max(p.TimeoutSeconds, 1)) * time.Second
	delay := time.NewTimer(time.Duration(p.InitialDelaySeconds) * time.Second)
	defer delay.Stop()
	select {
	case <-ctx.Done():
		return
	case <-delay.C:
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	var run int32 // results in a row that speak against the verdict
	for {
		once, cancel := context.WithTimeout(ctx, timeout)
		err := check(once)
		cancel()
		if ctx.Err() != nil {
			return
		}
		against := p.FailureThreshold
		if !good {
			against = p.SuccessThreshold
		}
		if (err == nil) == good {
			run = 0
		} else if run++; run >= max(against, 1) {
			good, run = !good, 0
			report(good, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// prober runs one kind of probe, from the node's namespace as a kubelet does.
type prober struct {
	node  string // name of the node's namespace
	pod   netip.Addr
	ports []corev1.ContainerPort
	exec  func(ctx context.Context, argv []string) error // in the pod
}

// do probes once.
func (p prober) do(ctx context.Context, h corev1.ProbeHandler) error {
	switch {
	case h.HTTPGet != nil:
		return p.get(ctx, h.HTTPGet)
	case h.TCPSocket != nil:
		addr, err := p.target(h.TCPSocket.Host, h.TCPSocket.Port)
		if err != nil {
			return err
		}
		conn, err := p.dial(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	case h.Exec != nil:
		return p.exec(ctx, h.Exec.Command)
	}
	return fmt.Errorf("this kind of probe is not supported in the lab")
}

// get runs an httpGet probe: 200 to 399 is success. It follows no redirect and verifies no
// certificate.
func (p prober) get(ctx context.Context, a *corev1.HTTPGetAction) error {
	addr, err := p.target(a.Host, a.Port)
	if err != nil {
		return err
	}
	scheme := "http"
	if a.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+addr+"/", http.NoBody)
	if err != nil {
		return err
	}
	if u, err := req.URL.Parse(a.Path); err == nil && u.Host == req.URL.Host {
		req.URL = u
	}
	req.Header.Set("User-Agent", "kube-probe/1.36")
	for _, h := range a.HTTPHeaders {
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	client := http.Client{
		Transport: &http.Transport{
			DialContext:       p.dial,
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a probe asks whether it answers, not who
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 10<<10)
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return fmt.Errorf("HTTP probe failed with status code %d", resp.StatusCode)
	}
	return nil
}

func (p prober) target(host string, port intstr.IntOrString) (string, error) {
	if host == "" {
		host = p.pod.String()
	}
	number := port.IntValue()
	if port.Type == intstr.String {
		for _, named := range p.ports {
			if named.Name == port.StrVal {
				number = int(named.ContainerPort)
			}
		}
	}
	if number < 1 || number > 65535 {
		return "", fmt.Errorf("no port is called %q", port.String())
	}
	return net.JoinHostPort(host, strconv.Itoa(number)), nil
}

func (p prober) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var conn net.Conn
	err := within(p.node, func() (err error) {
		// The resolver would use other threads. A literal address is dialled on this thread, with one
		// socket.
		conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}
