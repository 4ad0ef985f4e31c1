package ingress

import "sallyport/ingress/input"

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
	Owners         = input.Owners
	AddressOwner   = input.AddressOwner
	ObjectRef      = input.ObjectRef
	Problem        = input.Problem
)
