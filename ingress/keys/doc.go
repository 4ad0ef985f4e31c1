// Package keys makes the settings of backends out of the keys of Ingresses, Services and ConfigMaps.
//
// It owns the [Settings] of backends, and a [Memory] of those that were made before. It looks up the objects
// that keys name in a [World]: Secrets, ConfigMaps, Services, and the custom resources of HAProxy's own
// controller (package kic). Package annotations reads the values of the keys.
//
// It alone knows which objects a key may name, and when Settings are made anew. They depend on their keys,
// and on the objects that these name: an object that has changed makes new Settings.
//
// It promises that the keys of one backend change no other backend, and that a key which names an object of
// another namespace has an effect only if the operator allows it.
//
// Its limit: it makes no backends, and reports no problems. Package ingress does both.
package keys
