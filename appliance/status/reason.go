package status

// The codes of the reasons for which a server takes no traffic. NoSession and BlocksWithheld are
// among them, too.
const (
	EndpointGone     Code = "endpoint-gone"
	Terminating      Code = "terminating"
	ClusterDrained   Code = "cluster-drained"
	ClusterSilent    Code = "cluster-silent"
	ClusterScarce    Code = "cluster-scarce"
	AddressDenied    Code = "address-denied"
	Readdressed      Code = "readdressed"
	NoOffer          Code = "no-offer"
	OfferRefused     Code = "offer-refused"
	PoolNotExported  Code = "pool-not-exported"
	BlockUnconfirmed Code = "block-unconfirmed"
	RouteMissing     Code = "route-missing"
	RouteNotFollowed Code = "route-not-followed"
	RouteChanging    Code = "route-changing"
	BackendMissing   Code = "backend-missing"
	Opening          Code = "opening"
	CheckTimeout     Code = "check-timeout"
	CheckRefused     Code = "check-refused"
	CheckFailed      Code = "check-failed"
	RequestsFailed   Code = "requests-failed"
)

// Reasons says what each reason for a server without traffic means, and what its detail is.
// TROUBLESHOOTING.md has the same table.
var Reasons = []struct {
	Code  Code
	Means string
}{
	{EndpointGone, "the Service has lost this endpoint, and the server goes once its last connection ends"},
	{Terminating, "the endpoint is terminating"},
	{ClusterDrained, "the cluster of the pod is drained (`clusters[].state`, or a command), and another cluster of " +
		"its set serves"},
	{ClusterSilent, "every BGP session of the cluster of the pod is lost, and another cluster of its set serves"},
	{ClusterScarce, "the cluster of the pod has fewer ready servers for the Service than `clusters[].minReady`, or " +
		"had until a short time ago, and another cluster of its set serves"},
	{AddressDenied, "the address is not one that the namespace of the Service may use; the detail says why: " +
		"`own-address`, `api-server`, `foreign-cluster`, `no-pod`, `other-namespace`, `no-block`, `host-network`, " +
		"`unsure-node`, `node-port` or `no-records`"},
	{Readdressed, "somebody changed the address of the server in HAProxy"},
	{NoSession, "the node has no BGP session; the detail is the code of its last loss, if it has had a session"},
	{NoOffer, "no BGP peer offers the block of the address"},
	{OfferRefused, "the offer of the block was refused; the detail is a reason of `sallyport status refusals`"},
	{PoolNotExported, "nodes do not announce the IP pool, which the detail names"},
	{BlocksWithheld, "the node announces none of its blocks"},
	{BlockUnconfirmed, "the node does not own the block yet; the detail is the state of the BlockAffinity"},
	{RouteMissing, "the route is not in the kernel"},
	{RouteNotFollowed, "the kernel holds the route, and another one leads the packets away"},
	{RouteChanging, "the route gets another next hop"},
	{BackendMissing, "HAProxy does not have the backend yet"},
	{Opening, "the server is being opened"},
	{CheckTimeout, "the health check gets no answer"},
	{CheckRefused, "the pod refuses connections of the health check, or cannot be reached"},
	{CheckFailed, "the pod answers the health check wrongly or too late; the detail is HAProxy's name of the failure"},
	{RequestsFailed, "requests failed one after another"},
}
