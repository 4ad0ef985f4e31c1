// Command boot switches the image on as a virtual machine, in the place of a lab's
// appliance.
//
// It owns QEMU's process and the port on the lab's bridge. It alone knows how
// QEMU is told to be a machine: its firmware, its disk, the ways the one file
// arrives, its plug, and what a disk has lost when the power goes. It promises that
// power is cut at once when it is, and that nothing is left running after it. Its
// limit: a disk that loses what it was told to flush is not among its machines.
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

// boot runs the machine until it is switched off, or the context ends.
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
