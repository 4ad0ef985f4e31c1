package status

import "slices"

// A Finding is something that needs attention, or the result of one check of the doctor. Programs
// group findings by Code and Subject, and people read Saw.
type Finding struct {
	Code    Code   `json:"code,omitempty"`
	Subject string `json:"subject,omitempty"` // a cluster, router, member or resource; empty for the appliance
	Check   string `json:"check,omitempty"`   // of the doctor, in words: the check, and its subject if it has one
	Level   Level  `json:"level"`
	Saw     string `json:"saw"`               // without the remedy
	Remedy  string `json:"remedy,omitempty"`  // what to do; empty if nothing has to be done
	Command string `json:"command,omitempty"` // a command that does it, or shows more
}

// A Code names a kind of findings. Codes are stable: programs may depend on them.
type Code string

// The codes of findings of a running appliance.
const (
	BadConfig        Code = "bad-config"
	WaitingConfig    Code = "config"
	CertificateEnds  Code = "status-certificate"
	Crashes          Code = "crashes"
	ClusterAPI       Code = "cluster-api"
	ClusterRemoved   Code = "cluster-removed"
	ClusterSettings  Code = "cluster-settings"
	ClusterRetired   Code = "cluster-retired"
	SourceMissing    Code = "source-missing"
	MissingRights    Code = "missing-rights"
	ContestedStatus  Code = "contested-status"
	ClosedListeners  Code = "closed-listeners"
	OddObjects       Code = "calico-objects"
	PictureUnsaved   Code = "picture"
	SessionsLost     Code = "sessions-lost"
	NoSession        Code = "no-session"
	RouterSession    Code = "router-session"
	OpenSessions     Code = "open-sessions"
	ContestedAddress Code = "contested-address"
	BlocksWithheld   Code = "blocks-withheld"
	ClusterUnknown   Code = "cluster-unknown"
	ClusterPictured  Code = "cluster-pictured"
	RoutesAwaited    Code = "routes-awaited"
	Starting         Code = "starting"
	GroupClass       Code = "group-class"
	AddressNotHeld   Code = "address-not-held"
	SecondChance     Code = "second-chance"
	AddressClaimed   Code = "address-claimed"
	AddressConflict  Code = "address-conflict"
	RouterBFD        Code = "router-bfd"
	GroupPorts       Code = "group-ports"
	MemberSilent     Code = "member-silent"
	MemberUnheard    Code = "member-unheard"
	MemberDiffers    Code = "member-differs"
	MemberLags       Code = "member-lags"
	MemberReports    Code = "member-reports"
	Capacity         Code = "capacity"
	Connections      Code = "connections"
	RoundFailed      Code = "round-failed"
	Machine          Code = "machine"
)

// Codes says what each code means. TROUBLESHOOTING.md has the same table.
var Codes = []struct {
	Code  Code
	Means string
}{
	{ClusterUnknown, "not ready: the objects of the cluster are not known yet"},
	{ClusterPictured, "not ready: the cluster is served from its last good picture"},
	{RoutesAwaited, "not ready: BGP peers have not sent all their routes yet"},
	{Starting, "not ready: the first rounds have not ended yet"},
	{BadConfig, "the configuration file has a mistake, and the previous configuration stays in use"},
	{WaitingConfig, "a key waits for a restart, or the configuration deserves a second look"},
	{CertificateEnds, "the certificate of the status endpoint expires soon"},
	{Crashes, "sallyport crashed several times, and tries what is new part by part"},
	{ClusterAPI, "the API server of the cluster does not answer, or rejects a request"},
	{ClusterRemoved, "a cluster that was removed from the configuration is still served"},
	{ClusterSettings, "new settings of the cluster wait for its API server"},
	{ClusterRetired, "the cluster was drained by a command"},
	{SourceMissing, "this machine has no address from which to connect to the cluster's pods (`clusters[].source`)"},
	{MissingRights, "the appliance lacks a right in the cluster, or the cluster lacks a kind of objects"},
	{ContestedStatus, "another appliance or group replaces statuses in the cluster that this one writes"},
	{ClosedListeners, "listeners of Gateways of the cluster are not served"},
	{OddObjects, "objects of Calico contradict one another or the configuration"},
	{PictureUnsaved, "the last good picture of the cluster cannot be saved"},
	{SessionsLost, "every BGP session of the cluster was lost at once"},
	{NoSession, "nodes of the cluster have no BGP session"},
	{RouterSession, "an upstream router has no BGP session"},
	{OpenSessions, "any pod can open a BGP session in the place of its node"},
	{ContestedAddress, "two clusters claim one BGP address"},
	{BlocksWithheld, "nodes announce none of their blocks"},
	{GroupClass, "this appliance is not full"},
	{AddressNotHeld, "this machine does not hold a service address"},
	{SecondChance, "second chance does not work on this appliance"},
	{AddressClaimed, "another machine has a service address, or nobody could ask whether one has it"},
	{AddressConflict, "a service address, a member, a router or a pool of the group has an address of a cluster"},
	{RouterBFD, "BFD with an upstream router is down, though its BGP session is established"},
	{GroupPorts, "the rules for the ports of the group are not in the kernel"},
	{MemberSilent, "another member of the group is silent"},
	{MemberUnheard, "heartbeats of another member arrive, and are not accepted as such"},
	{MemberDiffers, "another member has another configuration"},
	{MemberLags, "another member serves something else than this appliance"},
	{MemberReports, "another member is not full, and reports why"},
	{Capacity, "a limit is near"},
	{Connections, "HAProxy accepts fewer connections than configured"},
	{RoundFailed, "a round of the loop failed; not ready if rounds fail for a while"},
	{RouteMissing, "not ready: wanted routes have not been in the kernel for a while"},
	{Machine, "the machine needs attention"},
}

// Sentence returns the finding and its remedy in words.
func (f Finding) Sentence() string {
	if f.Remedy == "" {
		return f.Saw
	}
	return f.Saw + ": " + f.Remedy
}

// Sentences returns the findings of a level in words.
func Sentences(all []Finding, level Level) (list []string) {
	for _, f := range all {
		if f.Level == level {
			list = append(list, f.Sentence())
		}
	}
	return list
}

// Noticed returns the status with findings about the machine, a sentence each.
func (s Status) Noticed(notices []string) Status {
	s.Findings = slices.Clone(s.Findings) // that of the View stays
	for _, saw := range notices {
		s.Findings = append(s.Findings, Finding{Code: Machine, Level: Doubt, Saw: saw})
	}
	s.Warnings = Sentences(s.Findings, Doubt)
	return s
}
