// Command attack
package main

import "slices"

func main() {}

func attacks() []attack { return slices.Concat(clients(), tenants()) }
