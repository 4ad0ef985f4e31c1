package world

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A service is a process that is started again whenever it ends, as runit does in calico-node.
type service struct {
	end  context.CancelFunc
	done chan struct{} // closed when it is over
	err  error         // to be read after done
}

// pause is the time before the next start: runit's own.
const pause = time.Second

// serve runs a service until its end, or that of the lab.
func (l *Lab) serve(name, ns string, args ...string) *service {
	life, end := context.WithCancel(l.life)
	s := &service{end: end, done: make(chan struct{})}
	l.background.Go(func() {
		defer close(s.done)
		for life.Err() == nil {
			p, err := l.start(name, ns, args...)
			if err != nil {
				l.log.Error("a part of Calico does not start", "part", name, "err", err)
			} else {
				select {
				case <-life.Done():
					s.err = p.end(0)
					return
				case <-p.done:
					l.log.Warn("a part of Calico has ended, and is started again", "part", name, "err", p.err)
				}
			}
			select {
			case <-life.Done():
			case <-time.After(pause):
			}
		}
	})
	return s
}

// stop kills the process and waits for its end.
func (s *service) stop() error {
	s.end()
	<-s.done
	return s.err
}

// once runs a program on a host to its end. The error has the end of its output.
func (l *Lab) once(ctx context.Context, name, ns string, args ...string) error {
	p, err := l.start(name, ns, args...)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), p.end(0))
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w; it said:\n%s", name, p.err, tail(l.path("log", name+".log"), 2000))
	}
	return p.end(0)
}
