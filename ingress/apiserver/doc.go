// Package apiserver owns the way to the API server of one cluster: its kubeconfig, the credentials
// and their renewal, and the words for a request that failed.
//
//	config.go  reads a kubeconfig
//	token.go   renews the token of a ServiceAccount, and keeps the newest one in a file
//	answer.go  says in words why a request failed, and what to do
package apiserver
