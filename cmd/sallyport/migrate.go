package main

import (
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/appliance/migrate"
)

func migrateCommand() *cobra.Command {
	var q migrate.Question
	cmd := &cobra.Command{
		Use:   "migrate --from CONTROLLER (-f FILE... | --kubeconfig FILE | --config FILE)",
		Short: "Show what becomes of Ingresses that were written for another controller",
		Long: `Show for each Ingress of ingress-nginx, or of HAProxy's own controller, and for each
of its annotations whether it works here as it does there: the same, a difference, not
served, refused there too, or without effect. Guards that are lost come first. For each
key of the ConfigMap of ingress-nginx it says what to write in the ConfigMap here.

It reads files, before anything is installed, or a cluster, and changes nothing. What it
says is compiled as the appliance does. Without --config the defaults of the configuration
apply. Services and Secrets that files name and do not have are taken to be good.

The exit code is 1 if a guard is lost, a path or a port of a TCP is not served, or a
document was not read.`,
		Example: `  sallyport migrate --from nginx -f manifests/ -R
  kubectl get ingress,service -A -o yaml | sallyport migrate --from nginx -f -
  helm template shop ./chart | sallyport migrate --from nginx -f - -o json
  sallyport migrate --from haproxy --kubeconfig ~/.kube/config -o wide
  sallyport migrate --from nginx --kubeconfig ~/.kube/config -o html > report.html`,
		Args: cobra.NoArgs,
	}
	from := oneOfFlag(cmd, "from", "", "the controller that the Ingresses were written for", "nginx", "haproxy")
	output := oneOfFlag(cmd, "output", "o", "form of the output; wide and html have each Ingress", "text", "wide",
		"html", "json")
	flags := cmd.Flags()
	flags.StringArrayVarP(&q.Files, "filename", "f", nil,
		"file or folder with YAML or JSON (may be repeated); - is the standard input")
	flags.BoolVarP(&q.Recursive, "recursive", "R", false, "also read the folders within the folders of -f")
	flags.StringVarP(&q.Namespace, "namespace", "n", "default", "namespace of objects in files that name none")
	flags.StringSliceVar(&q.Classes, "class", nil,
		"IngressClasses of the controller, with commas (default: that of the configuration, or else the name of the "+
			"controller)")
	flags.StringVar(&q.ConfigMap, "nginx-config-map", migrate.UsualConfigMap,
		"NAMESPACE/NAME of the ConfigMap of ingress-nginx")
	flags.StringVarP(&q.Config, "config", "c", "", "a configuration file, whose settings apply")
	flags.StringVar(&q.Kubeconfig, "kubeconfig", "", "kubeconfig of a cluster to read")
	cmd.MarkFlagsMutuallyExclusive("filename", "kubeconfig")
	cmd.MarkFlagsOneRequired("filename", "kubeconfig", "config")
	cmd.RunE = work(func(cmd *cobra.Command, _ []string) error {
		q.From, q.Stdin = from.value, cmd.InOrStdin()
		all, err := migrate.Ask(cmd.Context(), q)
		switch {
		case errors.Is(err, migrate.ErrConfig):
			return badConfig(err)
		case err != nil:
			return err
		}
		if err := writeReports(cmd.OutOrStdout(), all, output.value); err != nil {
			return err
		}
		for i := range all {
			if !all[i].Safe() {
				return errors.New("a guard is lost, a path or a port is not served, or a document was not read")
			}
		}
		return nil
	})
	return cmd
}

// writeReports writes Reports in a form.
func writeReports(out io.Writer, all []migrate.Report, form string) error {
	switch form {
	case "json":
		return writeJSON(out, all)
	case "html":
		return migrate.WriteHTML(out, all)
	}
	t := newWriter()
	for i := range all {
		for _, b := range all[i].Blocks(form == "wide") {
			t.block(b)
		}
	}
	return t.writeTo(out)
}

// block writes a part of a report.
func (w writer) block(b migrate.Block) {
	w.title(b.Title)
	if len(b.Columns) > 0 {
		header := make([]any, len(b.Columns))
		for i, c := range b.Columns {
			header[i] = strings.ToUpper(strings.ReplaceAll(c, " ", "-"))
		}
		header[0] = "  " + header[0].(string)
		w.line(header...)
	}
	for _, row := range b.Rows {
		if b.Alarm {
			w.alarm()
		}
		cells := make([]any, len(row))
		for i, c := range row {
			cells[i] = c
		}
		cells[0] = "  " + row[0]
		w.line(cells...)
	}
}
