// Package accesslog reads the lines of access logs of nginx, ingress-nginx, Apache and HAProxy.
//
// It owns the forms of these logs. A line is hostile, because the client has written a part of it. A
// Line has a path, a status and a host of bounded length.
//
// Its limit: it reads one line at a time, and does not find a line's form from the lines before.
package accesslog
