// Command externaldns does what external-dns does, with external-dns' own parts: its sources read the
// cluster, its plan compares them with the records that there are, and its provider keeps the records in
// memory. The flags are those of external-dns. Once a second it writes all records to the file that
// RECORDS names, as lines "HOST TYPE TARGET".
//
// The command of external-dns itself also has the clients of thirty DNS services, which take longer to
// compile than the rest of the lab.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/external-dns/endpoint"
	"sigs.k8s.io/external-dns/pkg/apis/externaldns"
	"sigs.k8s.io/external-dns/plan"
	"sigs.k8s.io/external-dns/provider/inmemory"
	"sigs.k8s.io/external-dns/registry"
	"sigs.k8s.io/external-dns/registry/noop"
	"sigs.k8s.io/external-dns/source"
	"sigs.k8s.io/external-dns/source/annotations"
	"sigs.k8s.io/external-dns/source/wrappers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
		log.Fatal("externaldns: ", err)
	}
}

func run(ctx context.Context) error {
	flags := externaldns.NewConfig()
	if err := flags.ParseFlags(os.Args[1:]); err != nil {
		return err
	}
	annotations.SetAnnotationPrefix(flags.AnnotationPrefix)
	config, err := source.NewSourceConfig(flags)
	if err != nil {
		return err
	}
	reads, err := wrappers.Build(ctx, config)
	if err != nil {
		return err
	}
	filter := endpoint.NewDomainFilterWithOptions(endpoint.WithDomainFilter(flags.DomainFilter))
	provider, err := inmemory.New(ctx, flags, filter)
	if err != nil {
		return err
	}
	records, err := noop.New(flags, provider)
	if err != nil {
		return err
	}
	for tick := time.NewTicker(time.Second); ; {
		if err := reconcile(ctx, flags, filter, reads, records); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// reconcile makes the records those that the sources want, as external-dns' controller does.
func reconcile(
	ctx context.Context, flags *externaldns.Config, filter *endpoint.DomainFilter, reads source.Source,
	records registry.Registry,
) error {
	current, err := records.Records(ctx)
	if err != nil {
		return err
	}
	wanted, err := reads.Endpoints(ctx)
	if err != nil {
		return err
	}
	if wanted, err = records.AdjustEndpoints(wanted); err != nil {
		return err
	}
	p := (&plan.Plan{
		Policies: []plan.Policy{plan.Policies[flags.Policy]}, Current: current, Desired: wanted,
		DomainFilter:   endpoint.MatchAllDomainFilters{filter, records.GetDomainFilter()},
		ManagedRecords: flags.ManagedDNSRecordTypes, ExcludeRecords: flags.ExcludeDNSRecordTypes,
		OwnerID: records.OwnerID(),
	}).Calculate()
	if p.Changes.HasChanges() {
		if err := records.ApplyChanges(ctx, p.Changes); err != nil {
			return err
		}
		if current, err = records.Records(ctx); err != nil {
			return err
		}
	}
	return write(os.Getenv("RECORDS"), current)
}

// write replaces a file by one with the records, sorted.
func write(file string, records []*endpoint.Endpoint) error {
	var lines []string
	for _, r := range records {
		for _, to := range r.Targets {
			lines = append(lines, fmt.Sprintf("%s %s %s\n", r.DNSName, r.RecordType, to))
		}
	}
	slices.Sort(lines)
	if err := os.WriteFile(file+".new", []byte(strings.Join(lines, "")), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
