//go:build profile

package main

import (
	"bufio"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
)

// A program that is built with the tag profile gives profiles of itself, at the socket that
// SALLYPORT_PROFILE names. `make profile` builds it. The product has no such socket.
var _ = serveProfiles(os.Getenv("SALLYPORT_PROFILE"))

func serveProfiles(socket string) error {
	if socket == "" {
		return nil
	}
	_ = os.Remove(socket) // of a program that was killed
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			profile(c)
		}
	}()
	return nil
}

// profile reads the kind of a profile, cpu or heap. A profile of the processor lasts until
// the other end sends no more.
func profile(c net.Conn) {
	defer c.Close() //nolint:errcheck // the other end sees what is missing
	in := bufio.NewReader(c)
	switch kind, _ := in.ReadString('\n'); kind {
	case "cpu\n":
		if pprof.StartCPUProfile(c) == nil {
			_, _ = io.Copy(io.Discard, in)
			pprof.StopCPUProfile()
		}
	case "heap\n":
		runtime.GC() // the profile is as of the last collection
		_ = pprof.Lookup("heap").WriteTo(c, 0)
	}
}
