package bgp

import "sallyport/routes"

// A LossCode names how a session ended. The codes are stable: programs may depend on them. A
// NOTIFICATION without a code of its own has the code notification-CODE-SUBCODE, with the numbers of
// RFC 4271, 4.5.
type LossCode string

// The codes.
const (
	ConnectionEnded     LossCode = "connection-ended"
	HoldTimeExpired     LossCode = "hold-time-expired"
	NoHoldTime          LossCode = "no-hold-time"
	PrefixLimit         LossCode = "prefix-limit"
	BFDDown             LossCode = "bfd-down"
	BadPeerAS           LossCode = "bad-peer-as"
	BadIdentifier       LossCode = "bad-bgp-identifier"
	PeerDeconfigured    LossCode = "peer-deconfigured"
	ConnectionRejected  LossCode = "connection-rejected"
	Shutdown            LossCode = "administrative-shutdown"
	AdministrativeReset LossCode = "administrative-reset"
	Reconfigured        LossCode = "reconfigured"
	SettingsChanged     LossCode = "settings-changed"
	NotSetUp            LossCode = "not-set-up"
	UnknownLoss         LossCode = "unknown"
)

// LossCodes says what each code means. TROUBLESHOOTING.md has the same table.
var LossCodes = []struct {
	Code  LossCode
	Means string
}{
	{ConnectionEnded, "the TCP connection ended without a NOTIFICATION"},
	{HoldTimeExpired, "nothing was heard for the hold time, on one of the two sides"},
	{NoHoldTime, "the peer asked for a hold time of 0"},
	{PrefixLimit, "the peer announced more prefixes than `clusters[].bgp.prefixLimit`, or a router announced some"},
	{BFDDown, "BFD is down"},
	{BadPeerAS, "one side expects another AS number of the other"},
	{BadIdentifier, "both sides have the same router id"},
	{PeerDeconfigured, "the peer is not configured for this appliance any more"},
	{ConnectionRejected, "the peer is not configured for the address of this appliance"},
	{Shutdown, "somebody stopped the BGP speaker of the peer"},
	{AdministrativeReset, "somebody reset the session at the peer"},
	{Reconfigured, "the peer restarts the session to use new settings"},
	{SettingsChanged, "this appliance restarted the session to use new settings"},
	{NotSetUp, "GoBGP did not accept the settings of the peer"},
	{UnknownLoss, "the session ended in another way; its sentence says more"},
}

// notifications holds the codes of NOTIFICATIONs by their numbers (RFC 4271, 4.5; RFC 4486;
// RFC 9384).
var notifications = map[string]LossCode{
	"2/2":  BadPeerAS,
	"2/3":  BadIdentifier,
	"4/0":  HoldTimeExpired,
	"6/2":  Shutdown,
	"6/3":  PeerDeconfigured,
	"6/4":  AdministrativeReset,
	"6/5":  ConnectionRejected,
	"6/6":  Reconfigured,
	"6/10": BFDDown,
}

// An ending is how a session ended: for Verify, for programs, and for people.
type ending struct {
	cause routes.Cause
	code  LossCode
	words string
}
