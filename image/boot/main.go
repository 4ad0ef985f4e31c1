// Command boot boots the image as a virtual machine, in place of a lab's appliance.
//
// It owns QEMU's process and the port on the lab's bridge. It alone knows QEMU's
// arguments: the firmware, the disk, the sources of the one file and the network. It also
// knows which writes a disk loses in a power cut. It promises to cut the power at once,
// and to leave nothing running. Its limit: it has no disk that loses flushed writes.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	lab := flag.String("lab", "demo", "name of the lab, which is up")
	image := flag.String("image", "", "the image, as a raw disk")
	config := flag.String("config", "", "the one file, for the partition CONFIG")
	dir := flag.String("dir", "", "folder for the machine's disk")
	flag.Parse()
	if err := boot(ctx, "sp-"+*lab+"-lan", *image, *config, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "boot:", err)
		os.Exit(1)
	}
}

// boot runs the machine until it goes off, or the context ends.
func boot(ctx context.Context, lan, image, config, dir string) error {
	file, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	m, err := NewMachine(ctx, lan, image, dir)
	if err != nil {
		return err
	}
	if err := m.Write(ctx, "sallyport.yaml", file); err != nil {
		return err
	}
	vm, err := m.On(ctx)
	if err != nil {
		return err
	}
	<-vm.Ended()
	return nil
}
