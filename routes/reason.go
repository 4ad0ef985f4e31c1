package routes

// Reason is why an offer was refused, in one word: a label for metrics.
type Reason string
