package ingress

import (
	"k8s.io/apimachinery/pkg/types"

	"sallyport/ingress/balance"
	"sallyport/ingress/cert"
	"sallyport/ingress/claims"
	"sallyport/ingress/gateway"
	"sallyport/ingress/input"
	"sallyport/ingress/keys"
	"sallyport/ingress/linked"
	"sallyport/ingress/listen"
)

// These types of package input are in every file of this package.
type (
	Snapshot       = input.Snapshot
	Objects        = input.Objects
	Options        = input.Options
	GatewayOptions = input.GatewayOptions
	Limits         = input.Limits
	HostRule       = input.HostRule
	Pools          = input.Pools
	AddressRange   = input.AddressRange
	Use            = input.Use
	Owners         = input.Owners
	AddressOwner   = input.AddressOwner
	ObjectRef      = input.ObjectRef
	Problem        = input.Problem
)

// So are these types of package claims.
type (
	claim      = claims.Claim
	claimant   = claims.Claimant
	petitioner = claims.Petitioner
	pathClaim  = claims.Path
	reference  = claims.Reference
	routeKey   = claims.Key
	tenant     = claims.Tenant
	gate       = claims.Gate
	serviceKey = types.NamespacedName
	pair       = cert.Pair
	placed     = linked.Placed
	settings   = keys.Settings
)

// A Balancer is a Service of type LoadBalancer, or a Gateway, that is ours.
type Balancer = balance.Balancer

// Reports about objects of Gateway API.
type (
	Condition      = gateway.Condition
	GatewayReport  = listen.GatewayReport
	ListenerReport = listen.ListenerReport
	RouteReport    = listen.RouteReport
	PlaceReport    = listen.PlaceReport
	FaultReport    = listen.FaultReport
)
