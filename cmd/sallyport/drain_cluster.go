package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/appliance"
	"sallyport/appliance/status"
)

// cluster sends an order about a cluster, and returns the state afterwards.
func (c control) cluster(
	ctx context.Context, method, order, name string, words ...string,
) (s appliance.ClusterDrainStatus, err error) {
	of := url.Values{"cluster": {name}}
	for _, word := range words {
		of.Set(word, "true")
	}
	err = c.ask(ctx, method, "/cluster/"+order+"?"+of.Encode(), &s)
	return s, err
}

// foresee tells whether the drain of a cluster would be refused, and which Services it would leave there.
func (c control) foresee(cmd *cobra.Command, name string, words []string) error {
	s, err := c.cluster(cmd.Context(), http.MethodGet, "drain", name, append(words, "dry")...)
	if err != nil {
		return err
	}
	done := "can be drained"
	if s.Draining {
		done = "is drained already"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "cluster %s %s%s\n", name, done, rest(s.Alone))
	return err
}

// drainCluster drains a cluster. With wait it returns once no connection to a drained pod is left, or
// after the timeout.
func (c control) drainCluster(cmd *cobra.Command, name string, words []string, wait bool, timeout time.Duration) error {
	s, err := c.cluster(cmd.Context(), http.MethodPost, "drain", name, words...)
	if err != nil {
		return err
	}
	if err := followers(cmd, s); err != nil || !wait {
		return err
	}
	for began := time.Now(); ; {
		switch {
		case !s.Draining:
			return errors.New("the drain was ended meanwhile, by sallyport undrain")
		case s.Drained && s.Connections == 0:
			_, err := fmt.Fprintf(cmd.OutOrStdout(),
				"drained: no connections to drained pods of cluster %s are left%s\n", name, rest(s.Alone))
			return err
		case time.Since(began) >= timeout && s.Drained:
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "drained, but after %s (--timeout) %s%s\n", timeout,
				left(s.Connections), rest(s.Alone))
			return err
		case time.Since(began) >= timeout:
			return fmt.Errorf("cluster %s is not drained after %s: %s", name, timeout,
				strings.Map(status.Printable, s.Error))
		}
		select {
		case <-cmd.Context().Done():
			return cmd.Context().Err()
		case <-time.After(drainPoll):
		}
		if s, err = c.cluster(cmd.Context(), http.MethodGet, "drain", name); err != nil {
			return err
		}
	}
}

// rest tells in words how many Services a drained cluster goes on serving.
func rest(alone int) string {
	if alone == 0 {
		return ""
	}
	return "; it still serves " + status.Counted(alone, "Service") + " that no other cluster serves"
}

// followers tells which members of a group follow the order.
func followers(cmd *cobra.Command, s appliance.ClusterDrainStatus) error {
	if s.Group == "" {
		return nil
	}
	later := ""
	if len(s.Silent) > 0 {
		later = fmt.Sprintf(", and once they are heard again: %s", strings.Join(s.Silent, ", "))
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "the members of group %s follow%s\n", s.Group,
		strings.Map(status.Printable, later))
	return err
}
