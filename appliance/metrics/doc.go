// Package metrics owns the metrics for Prometheus: their names and meaning, the counters that only the
// loop can keep, and the values that a scrape reads from the status. METRICS.md of package appliance lists them.
package metrics
