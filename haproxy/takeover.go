package haproxy

import (
	"errors"
	"slices"
	"strings"
	"time"
)

// For a moment after a reload two workers use the same socket, on a busy machine for a third of a
// second. The old worker accepts connections until it has handled the signal to stop. A command to
// the old worker is lost, and its answers are outdated. A worker is therefore marked before a
// reload, and the answers of a marked worker are ignored.

// replaced is the generation that marks a worker before a reload replaces it.
const replaced = "replaced"

// errReplaced says that an old worker has answered.
var errReplaced = errors.New("HAProxy's worker: the one before the reload still answers")

// notReplaced returns errReplaced if gen is the generation of an old worker.
func notReplaced(gen string) error {
	if gen == replaced {
		return errReplaced
	}
	return nil
}

// takeover bounds the time that an old worker may still answer.
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

// retire marks the worker as replaced, and returns the generation that it had.
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

// reinstate gives a worker that was marked as replaced its generation again. There must be no other
// worker.
func (w worker) reinstate(gen string) error {
	_, err := w.exchange(strings.Join(generationIs(gen), ";"))
	return err
}

// reinstated returns a reading of the worker. If the worker is marked although it is the only
// worker, an earlier process has ended before the reload. reinstated then removes the mark. The
// worker gets the generation ahead, because its routes may be newer than the files.
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
