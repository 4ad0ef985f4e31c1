package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sallyport/appliance/config"
	"sallyport/appliance/status"
	"sallyport/image"
	"sallyport/image/update"
)

func imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Commands of the bootable image",
		Long: `Commands of the bootable image. Its services run all of them but update, which is
for operators who log in with the maintenance key.`,
		Example: "  sallyport image screen --once\n  sallyport image update sallyport_1.2.3.efi",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	preparation := task("prepare", "Find the one file, and configure the machine by it", prepare)
	preparation.Long = `Find the one file, and configure the machine by it: addresses, names, firewall, and
the configuration of the process. A file with a mistake is not used. The last good
file is used instead, if there is one.`
	bless := func(context.Context, io.Writer) error { return update.Machine{}.Bless() }
	watch := func(ctx context.Context, out io.Writer) error { return image.Machine{}.Watch(ctx, lineTo(out)) }
	cmd.AddCommand(
		preparation,
		task("watch", "Configure the machine again whenever the one file changes", watch),
		task("wait", "Serve a page on the status port that explains how to give this machine its file", wait),
		screenCommand(),
		readyCommand(),
		task("bless", "Mark the version that runs as good, so that its starts are no longer counted", bless),
		updateCommand(),
	)
	return cmd
}

// task returns a command of the image that has no arguments. Its context ends when
// systemd stops the service.
func task(name, short string, run func(ctx context.Context, out io.Writer) error) *cobra.Command {
	return &cobra.Command{
		Use:     name,
		Short:   short,
		Example: "  sallyport image " + name,
		Args:    cobra.NoArgs,
		RunE: work(func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd)
			defer stop()
			return run(ctx, cmd.OutOrStdout())
		}),
	}
}

// untilSignal returns a context that ends when systemd stops the service.
func untilSignal(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
}

// lineTo returns a function that writes lines.
func lineTo(out io.Writer) func(string) {
	return func(text string) { _, _ = fmt.Fprintln(out, text) }
}

// prepare configures the machine. It writes the source of the file in use, and the machine's
// problems.
func prepare(ctx context.Context, out io.Writer) error {
	s, err := image.Machine{}.Prepare(ctx)
	line := lineTo(out)
	if s.Source != "" {
		line("the file in use is from " + s.Source)
	}
	for _, text := range s.Lines() {
		line(text)
	}
	if s.Source == "" {
		_, _ = io.WriteString(out, image.HowTo)
	}
	return err
}

func wait(ctx context.Context, _ io.Writer) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+strconv.Itoa(image.StatusPort))
	if err != nil {
		return err
	}
	return image.Machine{}.Wait(ctx, listener)
}

func screenCommand() *cobra.Command {
	var once bool
	cmd := task("screen", "Show the state of the machine on the console, redrawn every two seconds",
		func(ctx context.Context, out io.Writer) error {
			return image.Machine{}.Screen(ctx, out, versionText(), once)
		})
	cmd.Example += " --once"
	cmd.Flags().BoolVar(&once, "once", false, "print it once, without terminal codes")
	return cmd
}

func readyCommand() *cobra.Command {
	var within time.Duration
	cmd := task("ready", "Wait until the appliance is ready, or until the machine asks for its file",
		func(ctx context.Context, out io.Writer) error {
			ctx, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			return image.Machine{}.Ready(ctx, lineTo(out))
		})
	cmd.Example += " --within 1m"
	cmd.Flags().DurationVar(&within, "within", 5*time.Minute, "how long to wait")
	return cmd
}

func updateCommand() *cobra.Command {
	socket := control(config.Default().ControlSocket())
	r := update.Request{Members: socket.members}
	var stay, force bool
	cmd := &cobra.Command{
		Use:   "update [FILE|URL]",
		Short: "Install another version beside the one that runs, and reboot into it",
		Long: `Install another version beside the one that runs, and reboot into it. A key in this
image must have signed the version's manifest; until that is verified, nothing can
start the new version. If it is not ready within three starts, the machine returns to
the version that runs now.

URL is the address of the file, or of a folder whose file "latest" names the file.
The default is system.update.url. The folder must also have the file's manifest, with
.manifest after its name, and the manifest's signature, with .manifest.sig.

In a group the machine lets the other members take over before it reboots. With --newer
it waits for its turn: one member is updated at a time, the one with the lowest name
first, while all others serve, and the next one after system.update.stagger. A member
that returned to the old version keeps those after it waiting.`,
		Example: `  sallyport image update sallyport_1.2.3.efi
  sallyport image update https://updates.example.org/sallyport/ --no-reboot`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.Flags().BoolVar(&stay, "no-reboot", false, "do not reboot; the new version starts at the next start")
	cmd.Flags().BoolVar(&r.Older, "allow-downgrade", false,
		"install the version even if it is older than the one that runs")
	cmd.Flags().BoolVar(&r.Newer, "newer", false,
		"install the version only if it is newer than the one that runs, and has not failed here")
	cmd.Flags().BoolVar(&force, "force", false,
		"in a group: reboot even if no other member is full, and nobody serves then")
	output := oneOfFlag(cmd, "output", "o", "form of the output", "text", "json")
	cmd.RunE = work(func(cmd *cobra.Command, args []string) error {
		ctx, stop := untilSignal(cmd)
		defer stop()
		if len(args) > 0 {
			r.From = args[0]
		}
		r.Say = lineTo(cmd.ErrOrStderr())
		var m update.Machine
		done, err := m.Install(ctx, r)
		if err != nil {
			return err
		}
		switch {
		case output.value == "json":
			err = writeJSON(cmd.OutOrStdout(), done)
		case done.Installed == "":
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "nothing is installed: %s\n", done.Why)
		default:
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s starts next; %s runs, and is kept\n", done.Installed,
				done.Running)
		}
		if err != nil || done.Installed == "" || stay {
			return err
		}
		comeBack, err := socket.leave(ctx, force)
		if err == nil {
			err = m.Reboot(ctx, done.Installed, r.Say)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s is installed for the next start, but this machine does not "+
				"reboot now: %w", done.Installed, err), comeBack())
		}
		return nil
	})
	return cmd
}

// members returns the name of this machine in its group, and the states of the other members as it
// hears them.
func (c control) members(ctx context.Context) (self string, others []update.Member, err error) {
	var g status.GroupStatus
	if err := c.ask(ctx, http.MethodGet, "/group", &g); err != nil {
		return "", nil, err
	}
	if g.Draining {
		return "", nil, errors.New("this machine drains, and a reboot would end that: sallyport undrain")
	}
	for _, m := range g.Members {
		if m.Self {
			self = m.Name
			continue
		}
		o := update.Member{Name: m.Name, Version: m.Version, For: m.For}
		switch {
		case m.Problem != "":
			o.Lacks = "has a problem: " + m.Problem
		case !m.Serves():
			o.Lacks = m.State()
		}
		others = append(others, o)
	}
	return self, others, nil
}

// leave lets the other members of the group take over, and waits until nothing is announced
// here. When the machine stops it waits for the connections that are left. comeBack undoes
// that. A machine without a group, or alone in it, has nothing to do.
func (c control) leave(ctx context.Context, force bool) (comeBack func() error, err error) {
	comeBack = func() error { return nil }
	var g status.GroupStatus
	switch err := c.ask(ctx, http.MethodGet, "/group", &g); {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED):
		return comeBack, nil
	case err != nil:
		return comeBack, err
	case len(g.Members) < 2:
		return comeBack, nil
	}
	s, err := c.send(ctx, http.MethodPost, fmt.Sprintf("/drain?force=%t", force))
	if err != nil {
		return comeBack, err
	}
	comeBack = func() error {
		_, err := c.send(context.WithoutCancel(ctx), http.MethodPost, "/undrain")
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.Timeout,
		fmt.Errorf("it still announces its addresses after %s (group.drain.timeout)", s.Timeout))
	defer cancel()
	for !s.Left {
		select {
		case <-ctx.Done():
			return comeBack, context.Cause(ctx)
		case <-time.After(drainPoll):
		}
		if s, err = c.send(ctx, http.MethodGet, "/drain"); err != nil {
			return comeBack, err
		}
	}
	return comeBack, nil
}
