package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sallyport/test/faults"
	"sallyport/test/lab/world"
	"sallyport/test/load"
	"sallyport/test/rig"
)

// The clusters of a set. blue is first in the configuration file, and faults befall it.
const (
	blue  = "blue"
	green = "green"
	red   = "red"
)

// sets returns the suites of clusters that serve a Service as one (clusters[].set).
func sets() []suite {
	two, three := []string{blue, green}, []string{blue, green, red}
	together := setOf("set", ", two clusters", two, "weight: 50")
	together.scenarios = append(
		ofSet(1./2),
		scenario{44, "the weights of the clusters change", nothing, moveWeights},
		comesAndGoes(together),
	)
	least := setOf("minready", ", two clusters with minReady", two, "minReady: 3")
	least.scenarios = []scenario{
		{47, "pods of a cluster come and go for two minutes", bounds{gets: true, posts: true}, flapOfCluster},
		{52, "too few pods of a cluster are ready", bounds{gets: true, posts: true}, starve},
	}
	// blue gets all requests while it can.
	standby := setOf("standby", ", a standby cluster", two)
	standby.set[1].Keys = append(standby.set[1].Keys, "state: standby")
	standby.scenarios = append(ofSet(1), comesAndGoes(standby))
	third := setOf("set3", ", three clusters", three)
	third.scenarios = append(ofSet(1./3), comesAndGoes(third))
	list := []suite{together, least, standby, third}
	for _, same := range []bool{false, true} {
		g := setOf("setbgp2", ", two clusters, 2 members by BGP", two, "weight: 50")
		g.options.SamePods = same
		g.scenarios = inGroup()
		if same {
			g.name, g.suffix = "same", ", the same pods' network, 2 members by BGP"
			for i := range g.set {
				g.set[i].Pools = podsOf(0)
				g.set[i].Keys = append(g.set[i].Keys, fmt.Sprintf("source: 192.168.%d.0/24", 50+i))
			}
			g.scenarios = append(g.scenarios, scenario{
				50, "rules and routes of a cluster removed from the kernel",
				bounds{gets: true, posts: true, lasting: true, inflicted: true},
				removeRules,
			})
		}
		list = append(list, g.grouped(2, world.RouterBIRD))
	}
	return list
}

// nothing bounds what no client may notice.
var nothing = bounds{gets: true, posts: true, lasting: true}

// podsOf returns the network of the pods in the lab of a site.
func podsOf(site int) string { return fmt.Sprintf("172.%d.0.0/16", 16+site) }

// setOf returns a suite, without scenarios, of clusters with these names and keys.
func setOf(name, suffix string, clusters []string, keys ...string) suite {
	s := suite{
		name: name, suffix: suffix,
		options:   world.Options{Name: "chaos", Workers: 2},
		manifests: []string{"--cluster", clusters[0]},
		asn:       65000,
		target:    "192.168.50.21",
	}
	for site, c := range clusters {
		s.set = append(s.set, rig.Cluster{Name: c, Pools: podsOf(site), Keys: append([]string{"set: all"}, keys...)})
		if site > 0 {
			s.set[site].Kubeconfig = c + "/kubeconfig"
		}
	}
	return s
}

// ofSet returns the scenarios of one appliance. blue has this fraction of the requests.
func ofSet(fraction float64) []scenario {
	// Until HAProxy knows that pods are dead, it sends requests on its connections to them. A POST is not
	// repeated. While the appliance lives, it tells HAProxy early. If it is dead, HAProxy learns from its own
	// checks. All POSTs to blue may fail until then.
	posts := func(d time.Duration) int { return int(math.Ceil(fraction * rate / 5 * d.Seconds())) }
	return append(
		whateverServes(posts(400*time.Millisecond)),
		// Nobody ends the connections to dead pods, so that HAProxy could repeat their GETs.
		scenario{
			40, "they die while the appliance is dead, too",
			bounds{lost: posts(unknown), slowest: dead, window: unknown, gap: time.Second},
			loseClusterAlone,
		},
		scenario{41, "the API of a cluster is away, the appliance is killed", nothing, loseAPIOfCluster},
		scenario{45, "etcd of a cluster restored from a backup", bounds{gets: true, posts: true}, rewindCluster},
		scenario{
			51, "all pods of a cluster end while the appliance is stopped",
			bounds{gets: true, slowest: dead}, // each attempt to connect takes 500 ms
			emptyClusterAlone,
		},
	)
}

const (
	dead    = 2500 * time.Millisecond // a request may take so long that waits for a dead pod
	unknown = 1500 * time.Millisecond // HAProxy may send requests to dead pods for so long
)

// whateverServes returns the scenarios of a set for one appliance and for a group.
func whateverServes(received int) []scenario {
	return []scenario{
		{
			39, "all nodes and the API of a cluster die",
			bounds{gets: true, lost: received, slowest: dead},
			loseCluster,
		},
		{42, "a cluster drained, and back", nothing, drainCluster},
		{
			43, "all pods of a cluster end, and come back",
			bounds{gets: true, posts: true, slowest: 500 * time.Millisecond},
			emptyCluster,
		},
	}
}

// inGroup returns the scenarios of a group of appliances.
func inGroup() []scenario {
	return append(
		whateverServes(8),
		scenario{
			48, "a member dies while a cluster is drained",
			bounds{others: true, slowest: 2 * time.Second, window: time.Second, gap: time.Second},
			loseMemberDrained,
		},
		scenario{49, "a cluster drained while heartbeats are lost", nothing, drainUnheard},
	)
}

// join brings up the labs of the further clusters, and lets all of them export the Service app.
func (s *testbed) join(ctx context.Context, h suite) error {
	if len(h.set) == 0 {
		return nil
	}
	for i, c := range h.set[1:] {
		if err := s.joinOne(ctx, h, c, i+1); err != nil {
			return err
		}
	}
	for _, cluster := range s.clusters() {
		err := cluster.AddExports(ctx)
		if err == nil {
			err = cluster.Apply(ctx, rig.Export("default", "app"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// joinOne brings up the lab of a further cluster, at a site. All members of the group are in its network.
func (s *testbed) joinOne(ctx context.Context, h suite, c rig.Cluster, site int) error {
	dir := filepath.Join(s.Dir, c.Name)
	if err := os.Mkdir(dir, 0o711); err != nil { //nolint:gosec // HAProxy's worker, another user, passes through
		return err
	}
	for _, program := range []string{"sallyport", "app"} {
		if err := os.Symlink(filepath.Join("..", program), filepath.Join(dir, program)); err != nil {
			return err
		}
	}
	for _, member := range s.others {
		if err := os.Symlink(filepath.Join("..", c.Name), filepath.Join(member.Dir, c.Name)); err != nil {
			return err
		}
	}
	c.Kubeconfig = ""
	if err := rig.Configure(dir, h.config, c); err != nil {
		return err
	}
	options := world.Options{
		Name: h.options.Name + c.Name, Site: site, SamePods: h.options.SamePods, Workers: 2,
		Appliances: h.options.Appliances, Calico: h.options.Calico, Progress: io.Discard,
	}
	other, err := rig.New(ctx, dir, options, addressFlags(options)...)
	if err != nil {
		return err
	}
	s.far = append(s.far, other)
	return errors.Join(other.Lend(ctx, s.Lab), other.ClaimBlocks(ctx, world.Master))
}

// leave takes down the labs of the further clusters.
func (s *testbed) leave() (err error) {
	for _, other := range s.far {
		err = errors.Join(err, other.Close())
	}
	return err
}

// clusters returns the labs of all clusters.
func (s *testbed) clusters() []*rig.Rig { return append([]*rig.Rig{s.Rig}, s.far...) }

// ofBlue are the nodes of blue. Its API server is on the first one.
var ofBlue = []string{world.Master, "worker1", "worker2"}

// serving waits until so many servers of blue take requests, and all of so many other clusters, at each
// member.
func (s *testbed) serving(ctx context.Context, inBlue, others int) error {
	what := fmt.Sprintf("%d servers of blue take requests, and all of %d other clusters", inBlue, others)
	return rig.Eventually(ctx, what, func() error {
		for _, member := range s.members() {
			if err := serves(ctx, member, inBlue, others); err != nil {
				return fmt.Errorf("%s: %w", member.Machine(), err)
			}
		}
		return nil
	})
}

// serves returns an error unless a member has these servers.
func serves(ctx context.Context, member *rig.Rig, inBlue, others int) error {
	st, err := member.Status(ctx)
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
	whole := 0
	for cluster, n := range serve {
		if cluster != blue && n == replicas {
			whole++
		}
	}
	if serve[blue] != inBlue || whole != others {
		return fmt.Errorf("those of %v do", serve)
	}
	return nil
}

// unpowered returns the fault that no node of blue has power.
func (s *testbed) unpowered() faults.Fault {
	var all []faults.Fault
	for _, node := range slices.Backward(ofBlue) { // kubectl asks the first one
		all = append(all, faults.Power(s.Rig, node))
	}
	return faults.All(all...)
}

// loseCluster lasts until every member has lost its BGP sessions with blue, so that nothing waits for their hold time.
func loseCluster(ctx context.Context, s *testbed) error {
	return s.unpowered().During(ctx, func() error {
		began := time.Now()
		err := s.serving(ctx, 0, len(s.far))
		s.note("the dead cluster's servers were closed after %s", time.Since(began).Round(100*time.Millisecond))
		for _, member := range s.members() {
			err = errors.Join(err, silent(ctx, member))
		}
		return errors.Join(err, rig.Pause(ctx, 3*time.Second))
	})
}

// silent waits until a member has no BGP session with blue.
func silent(ctx context.Context, member *rig.Rig) error {
	return rig.Eventually(ctx, member.Machine()+" has no session with blue", func() error {
		st, err := member.Status(ctx)
		for _, p := range st.Peers {
			if err == nil && p.Cluster == blue && p.Up() {
				return fmt.Errorf("that with %s is established", p.Addr)
			}
		}
		return err
	})
}

// loseClusterAlone kills the appliance before blue dies, and starts it while blue is dead. By then no client waits
// any more for an answer of a dead pod.
func loseClusterAlone(ctx context.Context, s *testbed) error {
	if err := s.Stop(syscall.SIGKILL); err != nil {
		return err
	}
	return s.unpowered().During(ctx, func() error {
		err := errors.Join(rig.Pause(ctx, unknown+load.Patience), s.Start(ctx), s.serving(ctx, 0, len(s.far)))
		return errors.Join(err, rig.Pause(ctx, 3*time.Second))
	})
}

func loseAPIOfCluster(ctx context.Context, s *testbed) error {
	master, _ := s.Host(world.Master)
	away := faults.Filter(s.Rig, world.Appliance, "output ip daddr "+master.Addr.Addr().String()+" tcp dport 6443 drop")
	return away.During(ctx, func() error {
		return errors.Join(rig.Pause(ctx, 5*time.Second), s.Stop(syscall.SIGKILL), s.Start(ctx), s.pictured(ctx, blue),
			s.serving(ctx, replicas, len(s.far)), rig.Pause(ctx, 5*time.Second))
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
	m := s.members()[len(s.others)] // one command is enough for all members
	return s.withoutReload(ctx, func() error {
		return errors.Join(command(ctx, m, "drain", "--cluster", blue, "--wait"), s.serving(ctx, 0, len(s.far)),
			rig.Pause(ctx, 3*time.Second), command(ctx, m, "undrain", "--cluster", blue),
			s.serving(ctx, replicas, len(s.far)))
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
	return errors.Join(s.scaleUnseen(ctx, 0), s.serving(ctx, 0, len(s.far)), havePods(ctx, s.Rig, 0),
		s.scaleUnseen(ctx, replicas))
}

// starve leaves blue two pods, where minReady asks for three, and then gives it all of them.
func starve(ctx context.Context, s *testbed) error {
	if err := s.forgetFailures(ctx); err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "scale", "deployment/app", "--replicas=2"); err != nil {
		return err
	}
	began := time.Now()
	err := s.serving(ctx, 0, len(s.far))
	s.note("blue gave way %s after the order to end its pods", time.Since(began).Round(10*time.Millisecond))
	return errors.Join(err, havePods(ctx, s.Rig, 2), s.scaleUnseen(ctx, replicas))
}

// emptyClusterAlone ends the pods while the process of the appliance is stopped: HAProxy alone finds out.
func emptyClusterAlone(ctx context.Context, s *testbed) error {
	if err := syscall.Kill(s.Pid(), syscall.SIGSTOP); err != nil {
		return err
	}
	err := errors.Join(s.scaleUnseen(ctx, 0), havePods(ctx, s.Rig, 0), rig.Pause(ctx, 2*time.Second))
	err = errors.Join(err, syscall.Kill(s.Pid(), syscall.SIGCONT))
	return errors.Join(err, s.serving(ctx, 0, len(s.far)), s.scaleUnseen(ctx, replicas))
}

// forgetFailures starts the appliance again, which has then forgotten how often blue has failed.
func (s *testbed) forgetFailures(ctx context.Context) error {
	return errors.Join(s.Stop(syscall.SIGTERM), s.Start(ctx), s.settle(ctx))
}

// flapOfCluster ends all pods of blue and lets them come back, again and again. Each time that its servers fail, blue
// waits longer until it serves again (appliance/CLUSTERS.md).
func flapOfCluster(ctx context.Context, s *testbed) error {
	if err := s.forgetFailures(ctx); err != nil {
		return err
	}
	const most = 4 // after 10, 20, 40 and 80 s
	watched, stop := context.WithCancel(ctx)
	returns := make(chan int, 1)
	go func() {
		n, served := 0, true
		for rig.Pause(watched, 200*time.Millisecond) == nil {
			st, err := s.Status(watched)
			for _, c := range st.Clusters {
				if err == nil && c.Name == blue && c.Share != nil {
					if serves := *c.Share > 0; serves != served {
						served = serves
						if serves {
							n++
						}
					}
				}
			}
		}
		returns <- n
	}()
	var err error
	for began := time.Now(); err == nil && time.Since(began) < 2*time.Minute; {
		err = errors.Join(s.scaleUnseen(ctx, 0), rig.Pause(ctx, 2*time.Second), s.scaleUnseen(ctx, replicas),
			rig.Pause(ctx, 2*time.Second))
	}
	stop()
	n := <-returns
	s.note("requests came back to the cluster %d times", n)
	if n > most {
		s.fail("requests came back to the cluster %d times, at most %d are allowed", n, most)
	}
	return err
}

// comesAndGoes returns the scenario that the last cluster leaves the configuration file, comes back, and gets another
// name.
func comesAndGoes(h suite) scenario {
	last := len(h.set) - 1
	renamed := slices.Clone(h.set)
	renamed[last].Name = "verde"
	fault := func(ctx context.Context, s *testbed) error {
		have := func(others int, clusters []rig.Cluster) error {
			err := errors.Join(rig.Configure(s.Dir, h.config, clusters...), syscall.Kill(s.Pid(), syscall.SIGHUP))
			if err != nil {
				return err
			}
			what := fmt.Sprintf("there are %d clusters, the last one %s", len(clusters), clusters[len(clusters)-1].Name)
			return errors.Join(rig.Eventually(ctx, what, func() error {
				st, err := s.Status(ctx)
				if n := len(st.Clusters); err == nil &&
					(n != len(clusters) || st.Clusters[n-1].Name != clusters[n-1].Name) {
					err = fmt.Errorf("there are %d: %+v", n, st.Clusters)
				}
				return err
			}), s.serving(ctx, replicas, others), rig.Pause(ctx, 2*time.Second))
		}
		return s.withoutReload(ctx, func() error {
			return errors.Join(have(last-1, h.set[:last]), have(last, h.set), have(last, renamed), have(last, h.set))
		})
	}
	// Connections to the pods of a cluster that leaves end with its routes.
	return scenario{
		46, "a cluster leaves the file, comes back, gets another name", bounds{gets: true, posts: true}, fault,
	}
}

// rewindCluster restores etcd of blue to a moment before a Service was made.
func rewindCluster(ctx context.Context, s *testbed) error {
	later := rig.Service("default", "later", "app") + rig.Export("default", "later")
	for _, other := range s.far {
		if err := other.Apply(ctx, later); err != nil {
			return err
		}
		defer func() { _, _ = other.Kubectl(ctx, "delete", "service,serviceexport", "later") }()
	}
	return s.rewind(ctx, later+ingressOf("later", "later.local", "later"))
}

// loseMemberDrained drains blue, and then takes the cable of the member away that had the command.
func loseMemberDrained(ctx context.Context, s *testbed) error {
	m := s.last()
	if err := errors.Join(command(ctx, m, "drain", "--cluster", blue, "--wait"), s.serving(ctx, 0, len(s.far)),
		s.KillNode(ctx, m.Machine()), s.remember(ctx, m)); err != nil {
		return err
	}
	err := errors.Join(s.serve(ctx, s.without(m)...), serves(ctx, s.Rig, 0, len(s.far)), rig.Pause(ctx, 2*time.Second))
	err = errors.Join(err, s.ReviveNode(ctx, m.Machine()))
	return errors.Join(err, s.serve(ctx, s.members()...), s.serving(ctx, 0, len(s.far)),
		command(ctx, s.Rig, "undrain", "--cluster", blue), s.serving(ctx, replicas, len(s.far)))
}

// drainUnheard drains blue at a member that the other one does not hear. The other one follows once it hears it.
func drainUnheard(ctx context.Context, s *testbed) error {
	m := s.last()
	cut := faults.Cut(s.Rig, m.Machine(), world.OnlyHeartbeat, s.Machine())
	err := cut.During(ctx, func() error {
		return errors.Join(command(ctx, m, "drain", "--cluster", blue, "--wait"), rig.Pause(ctx, 3*time.Second),
			serves(ctx, m, 0, len(s.far)), serves(ctx, s.Rig, replicas, len(s.far)))
	})
	return errors.Join(err, s.serving(ctx, 0, len(s.far)), command(ctx, s.Rig, "undrain", "--cluster", blue),
		s.serving(ctx, replicas, len(s.far)))
}

// removeRules removes the rules of blue's source and then its routes, ten times each, on the first member.
func removeRules(ctx context.Context, s *testbed) error {
	appliance, _ := s.Host(world.Appliance)
	source := appliance.Addr.Addr()
	number := binary.BigEndian.Uint32(source.AsSlice())
	var err error
	for range 10 {
		for _, args := range [][]string{
			{"rule", "del", "priority", "100", "from", source.String()},
			{"route", "flush", "table", strconv.FormatUint(uint64(number), 10)},
		} {
			if err == nil {
				_, err = s.Exec(ctx, world.Appliance, append([]string{"ip"}, args...)...)
			}
			err = errors.Join(err, s.serving(ctx, replicas, len(s.far)))
		}
	}
	return err
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
