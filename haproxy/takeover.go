package haproxy

import (
	"errors"
	"slices"
	"strings"
	"time"
)

// A reload leaves two workers at the same socket for a moment, on a busy machine for a third of a
// second: the old one accepts connections until it has handled the signal to stop. A command to it
// is lost, and its answers are outdated. So a worker is marked before a reload, and the answers of
// a marked worker do not count.

// replaced is the generation of a worker that another one replaces.
const replaced = "replaced"

// errReplaced says that an old worker has answered.
var errReplaced = errors.New("HAProxy's worker: the one before the reload still answers")

// notReplaced returns errReplaced for the generation of an old worker.
func notReplaced(gen string) error {
	if gen == replaced {
		return errReplaced
	}
	return nil
}

// takeover bounds the time in which an old worker may still answer.
const takeover = 5 * time.Second

// untilTaken repeats an exchange until no old worker answers it, for takeover at most.
func untilTaken(exchange func() error) error {
	for began := time.Now(); ; {
		if err := exchange(); !errors.Is(err, errReplaced) || time.Since(began) > takeover {
			return err
		}
		<-time.After(2 * time.Millisecond)
	}
}

// retire marks the worker as one that is replaced, and returns its generation.
func (w worker) retire() (gen string, err error) {
	mark := strings.Join(slices.Concat([]string{"get var proc.gen"}, generationIs(replaced), []string{"show version"}),
		";")
	err = untilTaken(func() error {
		answer, err := w.exchange(mark)
		if err != nil {
			return err
		}
		gen = quoted(answer[max(0, strings.Index(answer, genIs)):])
		return notReplaced(gen)
	})
	return gen, err
}

// reinstate gives the worker that was to be replaced its generation again. It is the only one.
func (w worker) reinstate(gen string) error {
	_, err := w.exchange(strings.Join(generationIs(gen), ";"))
	return err
}

// reinstated returns a reading of the worker. If that worker is marked although it is the only
// one, a process of ours has ended before the reload. Then the mark is removed, and the worker
// counts as one whose routes may be newer than the files.
func (p *Proxy) reinstated() (seen picture, err error) {
	err = untilTaken(func() error {
		seen, err = p.worker.lookOnce()
		if err == nil && seen.gen == replaced && slices.Contains(p.procs.workers, seen.pid) {
			if err = p.worker.reinstate(ahead); err == nil {
				seen, err = p.worker.lookOnce()
			}
		}
		if err != nil {
			return err
		}
		return notReplaced(seen.gen)
	})
	return seen, err
}
