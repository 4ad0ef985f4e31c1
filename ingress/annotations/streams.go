package annotations

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A Stream is a TCP service: a port of its own, and the Service that takes its
// connections.
type Stream struct {
	Port      uint16 // 1 to 65535
	To        ServicePort
	TLS       bool   // TLS ends here
	Proxy     bool   // clients begin with the PROXY protocol
	SendProxy string // PROXY protocol to the servers: "proxy-v1", "proxy-v2", or "" for none
}

// Streams reads a ConfigMap of TCP services. Each key is a port, each value
// namespace/Service:port[:ssl][:PROXY][:PROXY-V1|PROXY-V2]. The result is sorted by
// port. An invalid entry is reported, and costs no other.
func Streams(data map[string]string) (all []Stream, odd []Problem) {
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if key == logFormatTCP.Name {
			continue
		}
		s, err := stream(key, data[key])
		if err != nil {
			odd = append(odd, Problem{
				Scope: ConfigMap, Reason: "InvalidTCPService", As: key,
				Why: fmt.Sprintf("key %s: %v; it is ignored", Quote(key), err),
			})
			continue
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Stream) int { return int(a.Port) - int(b.Port) })
	return all, odd
}

// StreamLayer returns the keys of a ConfigMap of TCP services: it may have
// log-format-tcp beside its ports.
func StreamLayer(data map[string]string) Layer {
	if format, has := data[logFormatTCP.Name]; has {
		return Read(ConfigMap, map[string]string{logFormatTCP.Name: format})
	}
	return Layer{Scope: ConfigMap}
}

// stream reads one entry of a ConfigMap of TCP services.
func stream(port, line string) (s Stream, err error) {
	n, err := number(1, 65535)(port)
	if err != nil || strconv.Itoa(n) != port {
		return s, fmt.Errorf("%s is not a number from 1 to 65535", Quote(port))
	}
	s.Port = uint16(n) //nolint:gosec // read as a port
	words := strings.Split(strings.TrimSpace(line), ":")
	if len(words) < 2 {
		return s, fmt.Errorf("%s: want namespace/Service:port, and after it :ssl, :PROXY, :PROXY-V1 or :PROXY-V2",
			Quote(line))
	}
	if s.To, err = servicePort(words[0] + ":" + words[1]); err != nil {
		return s, err
	}
	if !dnsLabel.MatchString(s.To.Port) {
		return s, fmt.Errorf("%s is not the name or the number of a port", Quote(s.To.Port))
	}
	for _, word := range words[2:] {
		twice := false
		switch word {
		case "":
		case "ssl":
			twice, s.TLS = s.TLS, true
		case "PROXY":
			twice, s.Proxy = s.Proxy, true
		case "PROXY-V1":
			twice, s.SendProxy = s.SendProxy != "", "proxy-v1"
		case "PROXY-V2":
			twice, s.SendProxy = s.SendProxy != "", "proxy-v2"
		default:
			return s, fmt.Errorf("%s is not one of ssl, PROXY, PROXY-V1 and PROXY-V2", Quote(word))
		}
		if twice {
			return s,
				errors.New("a word is repeated; allowed are ssl, PROXY, and one of PROXY-V1 and PROXY-V2, each once")
		}
	}
	return s, nil
}
