package ingress

// The worlds of the tests, for the tests of packages that import this one.
var (
	SnapshotOf  = snapshot
	AppText     = app
	IngressText = ingress
	RuleText    = rule
	PathText    = path
	SecretText  = secretText
	OfNginx     = ofNginx
	ReadText    = read
)

// CertificateFor returns a certificate for some names.
func CertificateFor(names ...string) certificate { return certificate{names: names} }
