package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"sallyport/test/faults"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// The clusters of the suite sets. blue is first in the configuration file.
const (
	blue  = "blue"
	green = "green"
)

// sets returns the suite of two clusters that serve a Service as one (clusters[].set). Faults befall blue.
func sets() suite {
	nothing := bounds{gets: true, posts: true, lasting: true}
	const dead = 2500 * time.Millisecond // a request that waits for a dead pod
	// Until HAProxy knows that pods are dead, it sends requests on its connections to them. A POST is not
	// repeated. While the appliance lives, it tells HAProxy early, and received has been enough. If the
	// appliance is dead, HAProxy learns from its own checks. All POSTs to blue may fail until then. One of
	// five requests is a POST, and blue gets half of them.
	const received = 8
	const unknown = 1500 * time.Millisecond
	const sent = int(rate / 5 / 2 * unknown / time.Second)
	return suite{
		name: "set", suffix: ", two clusters",
		options:   world.Options{Name: "chaos", Workers: 2},
		manifests: []string{"--cluster", blue},
		set:       true,
		asn:       65000,
		target:    "192.168.50.21",
		scenarios: []scenario{
			{
				39, "all nodes and the API of a cluster die",
				bounds{gets: true, lost: received, slowest: dead},
				loseCluster,
			},
			// Nobody ends the connections to dead pods, so that HAProxy could repeat their GETs.
			{
				40, "they die while the appliance is dead, too",
				bounds{lost: sent, slowest: dead, window: unknown, gap: time.Second},
				loseClusterAlone,
			},
			{41, "the API of a cluster is away, the appliance is killed", nothing, loseAPIOfCluster},
			{42, "a cluster drained, and back", nothing, drainCluster},
			{
				43, "all pods of a cluster end, and come back",
				bounds{gets: true, posts: true, slowest: 500 * time.Millisecond},
				emptyCluster,
			},
			{44, "the weights of the clusters change", nothing, moveWeights},
		},
	}
}

// inSet are the keys of each cluster.
var inSet = []string{"set: both", "weight: 50"}

// configureSet writes the config file of an appliance with both clusters.
func (h suite) configureSet(dir string) error {
	return rig.Configure(dir, h.config,
		rig.Cluster{Name: blue, Pools: "172.16.0.0/16", Keys: inSet},
		rig.Cluster{Name: green, Pools: "172.17.0.0/16", Keys: inSet, Kubeconfig: "green/kubeconfig"})
}

// join brings up the lab of green, and lets both clusters export the Service app.
func (s *testbed) join(ctx context.Context, h suite) error {
	if !h.set {
		return nil
	}
	dir := filepath.Join(s.Dir, green)
	if err := os.Mkdir(dir, 0o711); err != nil { //nolint:gosec // HAProxy's worker, another user, passes through
		return err
	}
	for _, program := range []string{"sallyport", "app"} {
		if err := os.Symlink(filepath.Join("..", program), filepath.Join(dir, program)); err != nil {
			return err
		}
	}
	alone := rig.Cluster{Name: green, Pools: "172.17.0.0/16", Keys: inSet}
	if err := rig.Configure(dir, h.config, alone); err != nil {
		return err
	}
	other, err := rig.New(ctx, dir, world.Options{
		Name: h.options.Name + green, Site: 1, Workers: 2, Calico: h.options.Calico, Progress: io.Discard,
	})
	if err != nil {
		return err
	}
	s.green = other
	err = errors.Join(other.Lend(ctx, s.Lab), other.ClaimBlocks(ctx, world.Master))
	for _, cluster := range s.clusters() {
		if err = errors.Join(err, cluster.AddExports(ctx)); err == nil {
			err = cluster.Apply(ctx, rig.Export("default", "app"))
		}
	}
	return err
}

// leave takes down the lab of green. Without one it does nothing.
func (s *testbed) leave() error {
	if s.green == nil {
		return nil
	}
	return s.green.Close()
}

// clusters returns the labs of all clusters.
func (s *testbed) clusters() []*rig.Rig {
	if s.green == nil {
		return []*rig.Rig{s.Rig}
	}
	return []*rig.Rig{s.Rig, s.green}
}

// ofBlue are the nodes of blue. Its API server is on the first one.
var ofBlue = []string{world.Master, "worker1", "worker2"}

// serving waits until so many servers of each cluster take requests.
func (s *testbed) serving(ctx context.Context, inBlue, inGreen int) error {
	what := fmt.Sprintf("%d servers of blue and %d of green take requests", inBlue, inGreen)
	return rig.Eventually(ctx, what, func() error {
		st, err := s.Status(ctx)
		if err != nil {
			return err
		}
		serve := map[string]int{}
		for _, b := range st.Backends {
			for _, server := range b.Servers {
				if server.Serves() {
					serve[server.Cluster]++
				}
			}
		}
		if serve[blue] != inBlue || serve[green] != inGreen {
			return fmt.Errorf("those of %v do", serve)
		}
		return nil
	})
}

// dead returns the fault that no node of blue has power.
func (s *testbed) dead() faults.Fault {
	var all []faults.Fault
	for _, node := range slices.Backward(ofBlue) { // kubectl asks the first one
		all = append(all, faults.Power(s.Rig, node))
	}
	return faults.All(all...)
}

func loseCluster(ctx context.Context, s *testbed) error {
	return s.dead().During(ctx, func() error {
		began := time.Now()
		err := s.serving(ctx, 0, replicas)
		s.note("the dead cluster's servers were closed after %s", time.Since(began).Round(100*time.Millisecond))
		return errors.Join(err, rig.Pause(ctx, 3*time.Second))
	})
}

// loseClusterAlone kills the appliance before blue dies, and starts it while blue is dead.
func loseClusterAlone(ctx context.Context, s *testbed) error {
	if err := s.Stop(syscall.SIGKILL); err != nil {
		return err
	}
	return s.dead().During(ctx, func() error {
		err := errors.Join(rig.Pause(ctx, 5*time.Second), s.Start(ctx), s.serving(ctx, 0, replicas))
		return errors.Join(err, rig.Pause(ctx, 3*time.Second))
	})
}

func loseAPIOfCluster(ctx context.Context, s *testbed) error {
	master, _ := s.Host(world.Master)
	away := faults.Filter(s.Rig, world.Appliance, "output ip daddr "+master.Addr.Addr().String()+" tcp dport 6443 drop")
	return away.During(ctx, func() error {
		return errors.Join(rig.Pause(ctx, 5*time.Second), s.Stop(syscall.SIGKILL), s.Start(ctx), s.pictured(ctx, blue),
			s.serving(ctx, replicas, replicas), rig.Pause(ctx, 5*time.Second))
	})
}

// pictured waits until the appliance reports that a cluster is served from its picture.
func (s *testbed) pictured(ctx context.Context, cluster string) error {
	return rig.Eventually(ctx, "cluster "+cluster+" is served from its picture", func() error {
		st, err := s.Status(ctx)
		if all := strings.Join(st.NotReady, "; "); err == nil && !strings.Contains(all, "cluster "+cluster+": its API") {
			err = fmt.Errorf("not ready because %q", all)
		}
		return err
	})
}

func drainCluster(ctx context.Context, s *testbed) error {
	return s.withoutReload(ctx, func() error {
		return errors.Join(command(ctx, s.Rig, "drain", "--cluster", blue, "--wait"), s.serving(ctx, 0, replicas),
			rig.Pause(ctx, 3*time.Second), command(ctx, s.Rig, "undrain", "--cluster", blue),
			s.serving(ctx, replicas, replicas))
	})
}

// withoutReload calls do, and breaks the scenario if HAProxy reloads meanwhile.
func (s *testbed) withoutReload(ctx context.Context, do func() error) error {
	before, err := s.reloads(ctx)
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	after, err := s.reloads(ctx)
	if after != before {
		s.fail("%d reloads", after-before)
	}
	return err
}

func emptyCluster(ctx context.Context, s *testbed) error {
	scale := func(n int) error {
		_, err := s.Kubectl(ctx, "scale", "deployment/app", fmt.Sprintf("--replicas=%d", n))
		return errors.Join(err, s.rollout(ctx))
	}
	return errors.Join(scale(0), s.serving(ctx, 0, replicas), havePods(ctx, s.Rig, 0), scale(replicas))
}

// weight matches the weight of a cluster in the configuration file.
var weight = regexp.MustCompile(`\bweight: \d+`)

// weigh gives blue so many per cent of the requests, and waits until HAProxy has the weights.
func (s *testbed) weigh(ctx context.Context, percent int) error {
	file := filepath.Join(s.Dir, "sallyport.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	weights := []int{percent, 100 - percent} // in the order of the clusters
	text = weight.ReplaceAllFunc(text, func([]byte) []byte {
		one := fmt.Appendf(nil, "weight: %d", weights[0])
		weights = weights[1:]
		return one
	})
	if err := errors.Join(os.WriteFile(file, text, 0o600), syscall.Kill(s.Pid(), syscall.SIGHUP)); err != nil {
		return err
	}
	return rig.Eventually(ctx, fmt.Sprintf("blue has %d %% of the requests", percent), func() error {
		st, err := s.Status(ctx)
		for _, c := range st.Clusters {
			if err == nil && c.Name == blue && (c.Share == nil || math.Round(100**c.Share) != float64(percent)) {
				return fmt.Errorf("it has not: %+v", c)
			}
		}
		return err
	})
}

// moveWeights moves most requests to green, then to blue, and back.
func moveWeights(ctx context.Context, s *testbed) error {
	return s.withoutReload(ctx, func() error {
		var errs []error
		for _, percent := range []int{5, 95, 50} {
			errs = append(errs, s.weigh(ctx, percent), rig.Pause(ctx, 3*time.Second))
		}
		return errors.Join(errs...)
	})
}
