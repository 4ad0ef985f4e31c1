package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"sallyport/appliance/move"
)

func importCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "import FILE...",
		Short: "Make a configuration file of those of BIRD, keepalived and HAProxy's ingress controller",
		Long: `Make a configuration file of the files of a machine that ran HAProxy's ingress controller
beside BIRD, and print it. A FILE is a bird.conf (version 1 or 2), a keepalived.conf, or
one for HAProxy's ingress controller: its systemd unit, its command line, the values of
its Helm chart, or its Deployment. Files that they include are read, too.

A comment names each line that was widened, changed or not carried, with the reason and
what to do. No secret is printed: a key names a file, and a comment names the line to
copy the secret from.

The exit code is 1 if a line was not carried, or a file cannot be read.`,
		Example: `  sallyport config import /etc/bird/bird.conf /etc/systemd/system/haproxy-ingress.service
  sallyport config import /etc/bird/bird.conf /etc/keepalived/keepalived.conf values.yaml`,
		Args: cobra.MinimumNArgs(1),
		RunE: work(func(cmd *cobra.Command, args []string) error {
			var files []move.File
			for _, name := range args {
				text, err := readBounded(name)
				if err != nil {
					return err
				}
				files = append(files, move.File{Name: name, Text: text})
			}
			r, err := move.Import(files, readMatches)
			if err != nil {
				return err
			}
			if _, err := io.WriteString(cmd.OutOrStdout(), r.Text); err != nil {
				return err
			}
			if !r.Whole() {
				return errors.New("not all was carried: see the comments that begin with \"not carried\"")
			}
			return nil
		}),
	}
}

// readMatches reads the regular files that a pattern matches.
func readMatches(pattern string) (all []move.File, err error) {
	names, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			continue
		}
		text, err := readBounded(name)
		if err != nil {
			return nil, err
		}
		all = append(all, move.File{Name: name, Text: text})
	}
	return all, nil
}

// readBounded reads a file that is not larger than all files of an import may be.
func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.LimitReader(f, move.MaxSize+1))
	if err == nil && len(text) > move.MaxSize {
		err = fmt.Errorf("%s: is larger than %d bytes, the limit of an import", name, move.MaxSize)
	}
	return text, err
}
