package address

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// SYNCookies returns how many SYN cookies the kernel has sent. The number grows while its
// queue of half-open connections is full.
func SYNCookies() (uint64, error) {
	const file = "/proc/net/netstat"
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("reading the number of SYN cookies: %w", err)
	}
	// A line of names comes before the line of their values.
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names {
			if name == "SyncookiesSent" && i < len(fields) {
				return strconv.ParseUint(fields[i], 10, 64)
			}
		}
		names = nil
	}
	return 0, fmt.Errorf("reading the number of SYN cookies: %s has no SyncookiesSent", file)
}
