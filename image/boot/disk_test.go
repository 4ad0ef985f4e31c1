package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"strings"
	"testing"
)

// entry returns a write as an entry of the log.
func entry(sector, flags uint64, text string) []byte {
	data := make([]byte, (len(text)+sectorSize-1)/sectorSize*sectorSize)
	copy(data, text)
	header := make([]byte, sectorSize)
	for i, word := range []uint64{sector, uint64(len(data) / sectorSize), flags} {
		binary.LittleEndian.PutUint64(header[8*i:], word)
	}
	return append(header, data...)
}

func TestADiskForgetsOnlyWhatWasNotFlushed(t *testing.T) {
	kept := [][]byte{
		make([]byte, sectorSize),
		entry(0, 0, "first"),
		entry(1, 0, "second"),
		entry(0, 0, "first again"),
		entry(0, flush, ""),
		entry(2, forced, "forced"),
	}
	unsure := [][]byte{entry(0, 0, "lost?"), entry(3, 0, "lost?")}
	torn := entry(1, 0, strings.Repeat("torn", 1000))
	for name, c := range map[string]struct {
		log  [][]byte
		want []string // each one that may be in a sector, with | between
	}{
		"nothing written":  {nil, []string{"", "", "", ""}},
		"all of it stays":  {kept, []string{"first again", "second", "forced", ""}},
		"some may be lost": {append(kept, unsure...), []string{"first again|lost?", "second", "forced", "|lost?"}},
		"one is torn":      {append(kept, torn[:2000]), []string{"first again", "second", "forced", ""}},
		"the log goes on":  {append(kept, make([]byte, 4096)), []string{"first again", "second", "forced", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			m := Machine{Dir: t.TempDir(), Forgets: true}
			if err := os.WriteFile(m.Disk(), make([]byte, 4*sectorSize), 0o600); err != nil {
				t.Fatal(err)
			}
			seen := map[string]bool{}
			for range 64 {
				if _, err := m.drive(context.Background()); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(m.writes(), bytes.Join(c.log, nil), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := m.forget(); err != nil {
					t.Fatal(err)
				}
				disk, err := os.ReadFile(m.flushed())
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for i := range 4 {
					got = append(got, strings.TrimRight(string(disk[i*sectorSize:(i+1)*sectorSize]), "\x00"))
				}
				for i, want := range c.want {
					ok := false
					for may := range strings.SplitSeq(want, "|") {
						ok = ok || got[i] == may
					}
					if !ok {
						t.Fatalf("sector %d is %q, want %q", i, got[i], want)
					}
				}
				seen[strings.Join(got, ",")] = true
			}
			want := 1
			for _, sector := range c.want {
				want *= 1 + strings.Count(sector, "|")
			}
			if len(seen) != want {
				t.Errorf("%d outcomes in 64 times, want %d: %v", len(seen), want, seen)
			}
		})
	}
}
