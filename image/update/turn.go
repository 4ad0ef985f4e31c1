package update

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// A Member is another member of the group of this machine, as this machine last heard it.
type Member struct {
	Name    string
	Version string        // that it runs
	Lacks   string        // why it cannot take over now, after its name: "drains"; "" if it can
	For     time.Duration // how long it has been as it is
}

// calm is how long every other member has to serve before a member leaves: a version that fails
// mostly fails in its first minutes.
const calm = 10 * time.Minute

// Turn returns why the member self waits with a version, or "" if it is this member's turn.
//
// One member is updated at a time, and only while all others serve. The member with the lowest name
// is first. The next member follows when the members before it have served with the version for the
// time of stagger. Every member decides for itself, by the states that it hears of the others: a
// member that returns to its old version keeps those after it waiting, until there is another
// version.
func Turn(self string, others []Member, version string, stagger time.Duration) string {
	others = slices.SortedFunc(slices.Values(others), func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	for _, m := range others {
		if m.Lacks != "" {
			return fmt.Sprintf("%s %s", m.Name, m.Lacks)
		}
	}
	for _, m := range others {
		if m.For < calm {
			return fmt.Sprintf("%s has served for %s only; the next update follows after %s", m.Name,
				m.For.Round(time.Second), calm)
		}
	}
	for _, m := range others {
		switch has := compareVersions(m.Version, version) >= 0; {
		case !has && m.Name < self:
			return fmt.Sprintf("%s is updated first, and runs %s", m.Name, cmp.Or(m.Version, "an unknown version"))
		case has && m.For < stagger:
			return fmt.Sprintf("%s has served with version %s for %s; the next member follows after %s "+
				"(system.update.stagger)", m.Name, m.Version, m.For.Round(time.Second), stagger)
		}
	}
	return ""
}

// waits returns why this machine waits with a version, or "" if it need not wait. A machine without
// a group never waits. A machine that cannot ask its group waits.
func (m Machine) waits(ctx context.Context, r Request, version string) (string, error) {
	text, err := os.ReadFile(m.path(StaggerFile))
	if errors.Is(err, fs.ErrNotExist) || !r.Newer {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	stagger, err := time.ParseDuration(strings.TrimSpace(string(text)))
	if err != nil {
		return "", fmt.Errorf("%s: %w", StaggerFile, err)
	}
	self, others, err := r.Members(ctx)
	if err != nil {
		return err.Error(), nil //nolint:nilerr // the reason to wait
	}
	return Turn(self, others, version, stagger), nil
}

// tell writes for the status why the machine waits. If why is "", the machine does not wait.
func (m Machine) tell(why string) error {
	path := m.path(WaitFile)
	if why == "" {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return Replace(path, 0o600, why+"\n")
}
