package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
)

// Disk returns the path of the machine's disk.
func (m Machine) Disk() string { return m.path("disk.raw") }

// flushed returns the path of a copy of the disk from before the machine was switched
// on. Only a disk that forgets has it.
func (m Machine) flushed() string { return m.path("flushed.raw") }

// writes returns the path of the log of writes since that copy.
func (m Machine) writes() string { return m.path("writes.log") }

// disks returns all files of the machine's disk.
func (m Machine) disks() []string {
	list := []string{m.Disk()}
	if _, err := os.Stat(m.flushed()); err == nil {
		list = append(list, m.flushed())
	}
	return list
}

// drive returns the arguments of QEMU for the disk.
func (m Machine) drive(ctx context.Context) ([]string, error) {
	switch {
	case m.Diskless:
		return nil, nil
	case !m.Forgets:
		return []string{"-drive", "if=virtio,format=raw,file=" + option(m.Disk())}, nil
	}
	err := errors.Join(run(ctx, "cp", "--sparse=always", m.Disk(), m.flushed()), os.WriteFile(m.writes(), nil, 0o600))
	return []string{
		"-blockdev", "driver=file,node-name=disk,filename=" + option(m.Disk()), "-blockdev",
		"driver=file,node-name=log,filename=" + option(m.writes()),
		"-blockdev", "driver=blklogwrites,node-name=logged,file=disk,log=log", "-device", "virtio-blk-pci,drive=logged",
	}, err
}

// Cut cuts the power of a machine whose disk forgets. The disk keeps all writes up to the
// last flush, and a random choice of the writes after it.
func (vm *VM) Cut() error {
	vm.Pull()
	return errors.Join(vm.forget(), os.Rename(vm.flushed(), vm.Disk()))
}

// forget replays the log to the copy of the disk, up to the cut.
func (m Machine) forget() (err error) {
	log, err := os.Open(m.writes())
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // only read
	all, err := logged(log)
	if err != nil {
		return err
	}
	disk, err := os.OpenFile(m.flushed(), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.Close()) }()
	sure := 0 // those before the last flush
	for i, w := range all {
		if w.flags&flush != 0 {
			sure = i
		}
	}
	for i, w := range all {
		if i >= sure && w.flags&forced == 0 && rand.N(2) == 0 { //nolint:gosec // chance is all there is to it
			continue
		}
		if _, err := disk.WriteAt(w.data, w.sector*sectorSize); err != nil {
			return err
		}
	}
	return nil
}

// write is one entry of the log, in the kernel's format
// (Documentation/admin-guide/device-mapper/log-writes.rst).
type write struct {
	sector int64
	flags  uint64
	data   []byte
}

// Flags of an entry.
const (
	flush   = 1 << iota // what was written before is to stay
	forced              // this one is to stay when it is done
	discard             // it has no data
)

const sectorSize = 512

// logged returns the writes of a log. It leaves out a last one that is incomplete.
func logged(from io.Reader) (all []write, err error) {
	in := bufio.NewReaderSize(from, 1<<20)
	header := make([]byte, sectorSize)
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(header[8*i:]) }
	if _, err := io.ReadFull(in, header); err != nil {
		return nil, nil //nolint:nilerr // it wrote nothing
	}
	if magic := word(0); magic != 0x6a736677736872 && magic != 0 {
		return nil, fmt.Errorf("a log of writes does not begin with %x", magic)
	}
	for {
		if _, err := io.ReadFull(in, header); err != nil || word(1)|word(2) == 0 {
			return all, nil //nolint:nilerr // it ends here
		}
		w := write{sector: int64(word(0)), flags: word(2)} //nolint:gosec // a disk is not that large
		if w.flags&discard == 0 {
			w.data = make([]byte, word(1)*sectorSize)
		}
		if _, err := io.ReadFull(in, w.data); err != nil {
			return all, nil //nolint:nilerr // it ends here
		}
		all = append(all, w)
	}
}
