package status

// A Finding is the result of one check of the doctor.
type Finding struct {
	Check   string `json:"check"` // a stable name: one of those in package doctor
	Level   Level  `json:"level"`
	Saw     string `json:"saw"`
	Remedy  string `json:"remedy,omitempty"`  // what to do; empty if nothing has to be done
	Command string `json:"command,omitempty"` // a command that does it, or shows more
}

// A Level says how bad a Finding is.
type Level string

// The levels.
const (
	Healthy Level = "ok"
	Doubt   Level = "warning" // traffic may pass, and something needs attention
	Failed  Level = "failed"  // some traffic cannot pass
)
