package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Machine is a virtual machine that is off.
type Machine struct {
	Lan      string   // the lab's network namespace that holds its bridge
	Host     string   // of the lab, an appliance's, in whose place it is
	Dir      string   // its disk, its firmware's variables, its sockets; they stay when it is off
	Memory   int      // in MiB
	Args     []string // more for QEMU: another way for the file to arrive
	NoCable  bool     // its network cable is unplugged at the start
	Diskless bool     // its disk is not in
	Secure   bool     // its firmware starts only what is signed, once keys are enrolled
	Forgets  bool     // a power cut may lose any write that was not flushed
}

// A VM is a machine that is on.
type VM struct {
	Machine
	Began time.Time // when it was switched on
	cmd   *exec.Cmd
	ended chan struct{} // closed when QEMU has ended
	qmp   *talk
	log   bytes.Buffer // what QEMU complains of
}

// Firmware of Debian's package ovmf, without and with Secure Boot, and the variables of a
// new machine.
const (
	firmware       = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	secureFirmware = "/usr/share/OVMF/OVMF_CODE_4M.secboot.fd"
	variables      = "/usr/share/OVMF/OVMF_VARS_4M.fd"
)

// NewMachine creates a machine in dir, in place of the lab's first appliance. Its disk is a
// copy of the image with free space after it.
func NewMachine(ctx context.Context, lan, image, dir string) (Machine, error) {
	m := Machine{Lan: lan, Host: firstHost, Dir: dir, Memory: 512}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return m, err
	}
	if err := run(ctx, "cp", "--sparse=always", image, m.Disk()); err != nil {
		return m, err
	}
	if err := os.Truncate(m.Disk(), 2<<30); err != nil {
		return m, err
	}
	return m, run(ctx, "cp", variables, m.path("vars.fd"))
}

func run(ctx context.Context, program string, args ...string) error {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

func (m Machine) path(name string) string { return filepath.Join(m.Dir, name) }

// Write writes a file to the partition CONFIG, as a laptop would. A running machine finds
// it when it looks next.
func (m Machine) Write(ctx context.Context, name string, data []byte) error {
	return m.put(ctx, "CONFIG", name, data)
}

func (m Machine) put(ctx context.Context, partition, name string, data []byte) error {
	at, err := m.partition(ctx, partition)
	if err != nil {
		return err
	}
	for _, disk := range m.disks() {
		if folder := filepath.Dir(name); folder != "." {
			_ = run(ctx, "mmd", "-i", disk+at, "::"+folder) // it may be there
		}
		cmd := exec.CommandContext(ctx, "mcopy", "-D", "o", "-i", disk+at, "-", "::"+name)
		cmd.Stdin = bytes.NewReader(data)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("mcopy: %w: %s", err, out)
		}
	}
	return nil
}

// partition returns the offset of a partition, in the form that mtools want after the
// name of the disk.
func (m Machine) partition(ctx context.Context, name string) (string, error) {
	out, err := exec.CommandContext(ctx, "partx", "--raw", "--noheadings", "--output", "NAME,START", m.Disk()).Output()
	if err != nil {
		return "", fmt.Errorf("read the partitions of %s: %w", m.Disk(), err)
	}
	for line := range strings.Lines(string(out)) {
		var is string
		var sector int64
		if _, err := fmt.Sscan(line, &is, &sector); err == nil && is == name {
			return fmt.Sprintf("@@%d", sector*sectorSize), nil
		}
	}
	return "", fmt.Errorf("the disk has no partition %s", name)
}

// Serial returns the path of the serial console's output since the last start.
func (m Machine) Serial() string { return m.path("serial.log") }

// On switches the machine on. The end of the context switches it off.
func (m Machine) On(ctx context.Context) (*VM, error) {
	if err := m.plug(ctx); err != nil {
		return nil, err
	}
	// Without KVM a string instruction copies byte by byte, so the kernel must not believe
	// it to be fast; and a fifth level of page tables costs time.
	accel := []string{"-accel", "tcg,thread=multi", "-cpu", "max,erms=off,fsrm=off,la57=off"}
	if KVM(ctx) {
		accel = []string{"-accel", "kvm", "-cpu", "host"}
	}
	kind, code, secure := "q35,smm=off", firmware, "off"
	if m.Secure {
		kind, code, secure = "q35,smm=on", secureFirmware, "on"
	}
	_ = os.Remove(m.path("qmp"))
	_ = os.Remove(m.path("agent"))
	args := append([]string{
		"netns", "exec", m.Lan, "qemu-system-x86_64", "-nodefaults", "-name", "sallyport", "-machine", kind,
		"-smp", "2", "-m", strconv.Itoa(m.Memory), "-display", "none", "-vga", "std", "-uuid",
		fmt.Sprintf("7b0b9a53-7c39-4d5c-8f0e-5b2f6ad3c0%02x", m.number()),
		"-drive", "if=pflash,format=raw,unit=0,readonly=on,file=" + code,
		"-drive", "if=pflash,format=raw,unit=1,file=" + option(m.path("vars.fd")),
		"-chardev", "file,id=serial,path=" + option(m.Serial()), "-serial", "chardev:serial",
		"-chardev", "socket,id=qmp,server=on,wait=off,path=" + option(m.path("qmp")), "-mon",
		"chardev=qmp,mode=control",
		"-chardev", "socket,id=agent,server=on,wait=off,path=" + option(m.path("agent")),
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
		"-device", "virtio-rng-pci", "-global", "driver=cfi.pflash01,property=secure,value=" + secure,
		"-netdev", "tap,id=lan,script=no,downscript=no,ifname=" + m.port(), "-device",
		"virtio-net-pci,netdev=lan,addr=0x10,mac=" + m.hardware() + ",romfile=",
	}, accel...)
	disk, err := m.drive(ctx)
	if err != nil {
		return nil, err
	}
	args = append(args, disk...)
	vm := &VM{Machine: m, Began: time.Now(), ended: make(chan struct{})}
	vm.cmd = exec.CommandContext(ctx, "ip", append(args, m.Args...)...)
	vm.cmd.Stdout, vm.cmd.Stderr = &vm.log, &vm.log
	if err := vm.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = vm.cmd.Wait()
		close(vm.ended)
	}()
	if vm.qmp, err = vm.dial(ctx, "qmp"); err == nil {
		_, err = vm.qmp.ask("qmp_capabilities", nil)
	}
	if err == nil && m.NoCable {
		err = vm.Cable(ctx, false)
	}
	if err != nil {
		vm.Pull()
		return nil, fmt.Errorf("QEMU: %w: %s", err, vm.log.String())
	}
	return vm, nil
}

// option escapes a path for an option of QEMU, where a comma would end it.
func option(path string) string { return strings.ReplaceAll(path, ",", ",,") }

// firstHost is the lab's first host for appliances. The others have its name with a number.
const firstHost = "appliance"

// number returns a number that differs between the machines of a lab.
func (m Machine) number() int {
	n, _ := strconv.Atoi(strings.TrimPrefix(m.Host, firstHost)) // the first has none
	return 0x20 + max(n, 1)
}

// card is the name that Linux gives the machine's network card, by its place on the PCI bus.
const card = "enp0s16"

// hardware returns the MAC address of the machine's network card.
func (m Machine) hardware() string { return fmt.Sprintf("52:54:00:50:00:%02x", m.number()) }

// port returns the name of the machine's port on the lab's bridge.
func (m Machine) port() string { return "vm-" + m.Host }

// plug connects the machine to the bridge in place of the appliance's host. That host
// keeps its namespace, but loses its link.
func (m Machine) plug(ctx context.Context) error {
	if run(ctx, "ip", "-n", m.Lan, "link", "show", m.port()) != nil {
		if err := run(ctx, "ip", "-n", m.Lan, "tuntap", "add", m.port(), "mode", "tap"); err != nil {
			return err
		}
	}
	state := upOrDown(!m.NoCable)
	return errors.Join(
		run(ctx, "ip", "-n", m.Lan, "link", "set", m.Host, "down"),
		run(ctx, "ip", "-n", m.Lan, "link", "set", m.port(), "master", "lan", state),
	)
}

// upOrDown returns the state of a link in the words of ip(8).
func upOrDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}

// Cable plugs the network cable in, or unplugs it.
func (vm *VM) Cable(ctx context.Context, in bool) error {
	_, err := vm.qmp.ask("set_link", map[string]any{"name": "lan", "up": in})
	return errors.Join(err, run(ctx, "ip", "-n", vm.Lan, "link", "set", vm.port(), upOrDown(in)))
}

// Pull cuts the power.
func (vm *VM) Pull() {
	_ = vm.cmd.Process.Kill()
	<-vm.ended
}

var errOff = errors.New("the machine is off")

// Ended returns a channel that is closed once the machine is off.
func (vm *VM) Ended() <-chan struct{} { return vm.ended }

// Button presses the power button.
func (vm *VM) Button() error {
	_, err := vm.qmp.ask("system_powerdown", nil)
	return err
}

// Press presses keys together, by QEMU's names for them.
func (vm *VM) Press(keys ...string) error {
	var list []any
	for _, k := range keys {
		list = append(list, map[string]any{"type": "qcode", "data": k})
	}
	_, err := vm.qmp.ask("send-key", map[string]any{"keys": list, "hold-time": 50})
	return err
}

// Screenshot writes a picture of the screen as PNG.
func (vm *VM) Screenshot(file string) error {
	_, err := vm.qmp.ask("screendump", map[string]any{"filename": file, "format": "png"})
	return err
}

// Run runs a program on the machine by QEMU's guest agent, and waits for its end.
func (vm *VM) Run(ctx context.Context, program string, args ...string) (string, error) {
	agent, err := vm.dial(ctx, "agent")
	if err != nil {
		return "", err
	}
	defer agent.conn.Close() //nolint:errcheck // one question
	if err := agent.sync(); err != nil {
		return "", err
	}
	started := struct{ PID int }{}
	if err := agent.into(&started, "guest-exec",
		map[string]any{"path": program, "arg": append([]string{}, args...), "capture-output": true}); err != nil {
		return "", err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		done := struct {
			Exited   bool
			ExitCode int    `json:"exitcode"`
			Out      []byte `json:"out-data"`
			Err      []byte `json:"err-data"`
		}{}
		if err := agent.into(&done, "guest-exec-status", map[string]any{"pid": started.PID}); err != nil {
			return "", err
		}
		if done.Exited {
			if done.ExitCode != 0 {
				err = fmt.Errorf("%s %s: exit code %d: %s%s", program, strings.Join(args, " "), done.ExitCode, done.Err,
					done.Out)
			}
			return string(done.Out), err
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-vm.ended:
			return "", errOff
		case <-tick.C:
		}
	}
}

// A talk is a connection that speaks QEMU's protocol: JSON requests and answers.
type talk struct {
	mu   sync.Mutex
	conn net.Conn
	in   *json.Decoder
}

// dial connects to QEMU, and waits until it listens.
func (vm *VM) dial(ctx context.Context, name string) (*talk, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", vm.path(name))
		if err == nil {
			return &talk{conn: conn, in: json.NewDecoder(bufio.NewReader(conn))}, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-vm.ended:
			return nil, err
		case <-tick.C:
		}
	}
}

// ask sends a request and returns its answer. It skips greetings and events.
func (t *talk) ask(verb string, args any) (json.RawMessage, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.send(verb, args); err != nil {
		return nil, err
	}
	return t.answer(verb)
}

// sync waits until the agent answers this connection. Before that it may answer requests
// of an earlier one.
func (t *talk) sync() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := strconv.Itoa(int(time.Now().UnixNano() & (1<<31 - 1)))
	err := t.send("guest-sync", map[string]any{"id": json.RawMessage(id)})
	for err == nil {
		var got json.RawMessage
		if got, err = t.answer("guest-sync"); string(got) == id {
			break
		}
	}
	return err
}

// send sends a request.
func (t *talk) send(verb string, args any) error {
	question := map[string]any{"execute": verb}
	if args != nil {
		question["arguments"] = args
	}
	text, err := json.Marshal(question)
	if err != nil {
		return err
	}
	if err := t.conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	_, err = t.conn.Write(append(text, '\n'))
	return err
}

// answer returns the next answer.
func (t *talk) answer(verb string) (json.RawMessage, error) {
	for {
		var answer struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := t.in.Decode(&answer); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("QEMU is gone")
			}
			return nil, fmt.Errorf("%s: %w", verb, err)
		}
		switch {
		case answer.Error != nil:
			return nil, fmt.Errorf("%s: %s", verb, answer.Error.Desc)
		case answer.Return != nil:
			return answer.Return, nil
		}
	}
}

func (t *talk) into(v any, verb string, args any) error {
	answer, err := t.ask(verb, args)
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, v)
}

// KVM reports whether this machine can run guests with KVM. The device is no proof: on a
// machine that is itself a guest, the firmware may already fail.
func KVM(ctx context.Context) bool {
	kvm.Do(func() {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-nodefaults", "-machine", "q35", "-accel", "kvm", "-cpu",
			"host", "-m", "256", "-display", "none",
			"-drive", "if=pflash,format=raw,unit=0,readonly=on,file="+firmware, "-serial", "stdio")
		out, err := cmd.StdoutPipe()
		if err != nil || cmd.Start() != nil {
			return
		}
		// The firmware has come as far as to find nothing to start.
		for line := bufio.NewScanner(out); line.Scan() && !works; {
			works = strings.Contains(line.Text(), "BdsDxe")
		}
		cancel()
		_ = cmd.Wait()
	})
	return works
}

var (
	kvm   sync.Once
	works bool
)
