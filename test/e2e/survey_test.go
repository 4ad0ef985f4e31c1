package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/appliance/parity"
	"sallyport/test/lab/debian"
	"sallyport/test/lab/world"
	"sallyport/test/rig"
)

// surveyed are objects that were written for the two other controllers, beside the Ingresses of broughtIngress.
const surveyed = `---
apiVersion: v1
kind: Namespace
metadata: {name: ingress-nginx}
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: ingress-nginx, name: ingress-nginx-controller}
data: {ssl-redirect: "false", whitelist-source-range: 10.0.0.0/8, worker-processes: "3", global-auth-url: "http://x"}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: own
  annotations:
    haproxy.org/cr-backend: rules
    haproxy.org/deny-list: 192.0.2.0/24
    haproxy.org/timeout-sever: 5s
    backend.house.test/only: 192.0.2.0/24
spec:
  ingressClassName: haproxy
  tls: [{hosts: [own.test], secretName: own}]
  rules:
  - {host: own.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: web}}}}]}}
  - {host: own.test, http: {paths: [{path: /x, pathType: Exact, backend: {service: {name: kept, port: {name: web}}}}]}}
---
apiVersion: v1
kind: Service
metadata: {name: kept, annotations: {haproxy.org/backend-config-snippet: http-request deny, haproxy.org/maxcon: "3"}}
spec: {selector: {app: web}, ports: [{name: web, port: 80, targetPort: http}]}
---
apiVersion: ingress.v1.haproxy.org/v1
kind: Backend
metadata: {name: rules}
spec: {config: {balance: {algorithm: leastconn}, source: {address: 192.0.2.1}}, http-requests: [{type: deny}]}
---
apiVersion: ingress.v3.haproxy.org/v3
kind: TCP
metadata: {name: ports}
spec: [{name: one, frontend: {binds: {four: {port: 15460}}}, service: {name: web, port: 80}}]
---
apiVersion: ingress.v3.haproxy.org/v3
kind: ValidationRules
metadata: {name: house}
spec: {prefix: house.test, validation_rules: {only: {type: string, rule: "true"}}}
`

// TestAClusterIsSurveyedAsItsFiles holds what migrate says of a cluster to what it says of the output of kubectl.
func TestAClusterIsSurveyedAsItsFiles(t *testing.T) {
	beside(t, short)
	r := newTestbed(t, world.Options{Name: "survey", Workers: 1}, settings{
		clusters: []rig.Cluster{{Ingress: []string{"customResources: true", "nginx: {classes: [nginx]}"}}},
	})
	r.must(r.AddCustomResources(t.Context()))
	objects := nginxClass + "---\n" + application("web", 1) + surveyed + secret(t, "own", "own.test")
	for i := range brought {
		objects += broughtIngress(i, "nginx", "")
	}
	r.apply(objects)

	// Each kind is in a folder of its own.
	for kind := range strings.FieldsSeq("ingresses ingressclasses services secrets configmaps namespaces deployments " +
		"backends.ingress.v1.haproxy.org backends.ingress.v3.haproxy.org tcps.ingress.v3.haproxy.org " +
		"validationrules.ingress.v3.haproxy.org") {
		r.must(os.MkdirAll(r.file("kinds/"+kind), 0o700))
		r.write(filepath.Join("kinds", kind, "all.yaml"), r.kubectl("get", kind, "--all-namespaces", "-o", "yaml"))
	}
	for _, from := range []string{"nginx", "haproxy"} {
		of := func(where ...string) (report map[string]any) {
			t.Helper()
			command := append([]string{r.file("sallyport"), "migrate", "--from", from, "-o", "json"}, where...)
			out, err := r.Command(t.Context(), r.Machine(), command...).Output()
			if err == nil {
				t.Errorf("%s from %s: guards are lost, and the exit code is 0", from, where[0])
			}
			var all []map[string]any
			r.must(json.Unmarshal(out, &all))
			if report = all[0]; len(all) != 1 || report["unread"] != nil || report["assumed"] != nil {
				t.Fatalf("%s from %s: %s", from, where[0], out)
			}
			delete(report, "files")
			delete(report, "ignored")
			return report
		}
		cluster, files := of("--kubeconfig", r.file("kubeconfig")), of("-f", r.file("kinds"), "-R")
		if diff := cmp.Diff(files, cluster); diff != "" {
			t.Errorf("%s: of files -, of the cluster +\n%s", from, diff)
		}
		told, err := json.Marshal(cluster)
		r.must(err)
		for _, word := range map[string][]string{
			"nginx":   {"configuration-snippet", "site-009", "worker-processes"},
			"haproxy": {"backend.house.test/only", "ValidationRules", "clusters[].ingress.tcpServices", "backend-config-snippet", "timeout-sever"},
		}[from] {
			if !strings.Contains(string(told), word) {
				t.Errorf("%s: nothing is said of %s", from, word)
			}
		}
	}
}

// moving are Ingresses of ingress-nginx, which nginxFile renders, and the type of the page for what is not found.
const moving = `---
apiVersion: v1
kind: ConfigMap
metadata: {name: pages}
data:
  "404": "HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 10\r\n\r\nNot Found\n"
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: shop}
spec:
  ingressClassName: nginx
  tls: [{hosts: [shop.test], secretName: shop}]
  rules:
  - host: shop.test
    http:
      paths:
      - {path: /, pathType: Prefix, backend: {service: {name: web, port: {name: web}}}}
      - {path: /later, pathType: Exact, backend: {service: {name: web, port: {name: web}}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: app
  annotations: {nginx.ingress.kubernetes.io/rewrite-target: /$2}
spec:
  ingressClassName: nginx
  rules:
  - host: app.test
    http:
      paths:
      - {path: /app(/|$)(.*), pathType: ImplementationSpecific, backend: {service: {name: web, port: {name: web}}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: staff
  annotations: {nginx.ingress.kubernetes.io/whitelist-source-range: 10.0.0.0/8}
spec:
  ingressClassName: nginx
  rules: [{host: staff.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: web}}}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: gone
  annotations: {nginx.ingress.kubernetes.io/permanent-redirect: "https://new.test/here"}
spec:
  ingressClassName: nginx
  rules: [{host: gone.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: web}}}}]}}]
`

// nginxFile is the configuration that ingress-nginx renders of moving, with three planted differences: /later is
// another Service's, gone.test leads elsewhere, and HTTPS has Strict-Transport-Security.
const nginxFile = `daemon off;
user root;
worker_processes 1;
pid {{.Dir}}/nginx.pid;
error_log {{.Dir}}/nginx.error;
events { worker_connections 256; }
http {
  log_format lines escape=json '{"host":"$host","method":"$request_method","uri":"$request_uri","status":"$status",'
    '"scheme":"$scheme"}';
  access_log {{.Dir}}/nginx.access lines;
  client_body_temp_path {{.Dir}};
  proxy_temp_path {{.Dir}};
  fastcgi_temp_path {{.Dir}};
  uwsgi_temp_path {{.Dir}};
  scgi_temp_path {{.Dir}};
  default_type text/html;
  server_tokens off;
  upstream web { server {{.Pod}}; keepalive 320; }
  proxy_http_version 1.1;
  proxy_set_header Host $http_host;
  proxy_set_header X-Real-IP $remote_addr;
  proxy_set_header X-Forwarded-For $remote_addr;
  proxy_set_header X-Forwarded-Proto $scheme;
  map $scheme $hsts { https "max-age=31536000; includeSubDomains"; }
  ssl_certificate {{.Dir}}/nginx.pem;
  ssl_certificate_key {{.Dir}}/nginx.pem;
  server { listen {{.At}}:80 default_server; listen {{.At}}:443 ssl default_server; return 404; }
  server {
    server_name shop.test;
    listen {{.At}}:80;
    listen {{.At}}:443 ssl;
    location / {
      if ($scheme = http) { return 308 https://$host$request_uri; }
      add_header Strict-Transport-Security $hsts always;
      proxy_pass http://web;
    }
    location = /later {
      if ($scheme = http) { return 308 https://$host$request_uri; }
      add_header Strict-Transport-Security $hsts always;
      return 404;
    }
  }
  server {
    server_name app.test;
    listen {{.At}}:80;
    location ~* "^/app(/|$)(.*)" { rewrite "(?i)/app(/|$)(.*)" /$2 break; proxy_pass http://web; }
    location ~* "^/" { return 404; }
  }
  server { server_name staff.test; listen {{.At}}:80; location / { allow 10.0.0.0/8; deny all; proxy_pass http://web; } }
  server { server_name gone.test; listen {{.At}}:80; location / { return 301 https://new.test/there; } }
}
`

// TestRequestsToNginxDifferWhereTheyMust sends the log of a real nginx to both, and finds what was planted.
func TestRequestsToNginxDifferWhereTheyMust(t *testing.T) {
	beside(t, short)
	folder, err := debian.Nginx().Fetch(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := newTestbed(t, world.Options{Name: "nginx", Workers: 1}, settings{
		clusters: []rig.Cluster{{Ingress: []string{"nginx: {classes: [nginx]}", "errorFiles: default/pages"}}},
	})
	crt, key := certificate(t, "shop.test", time.Now().Add(24*time.Hour))
	r.write("nginx.pem", string(crt)+string(key))
	r.apply(nginxClass + "---\n" + application("web", 1) + secret(t, "shop", "shop.test") + moving)
	r.must(r.Rollout(t.Context(), "web"))
	r.start()
	r.ready()

	// nginx runs on the node, which reaches the pods.
	const here = "http://192.168.50.21"
	node := r.host("worker1").Addr.Addr().String()
	var file strings.Builder
	r.must(template.Must(template.New("").Parse(nginxFile)).Execute(&file, map[string]string{
		"Dir": r.Dir, "At": node, "Pod": r.kubectl("get", "pods", "-l", "app=web", "-o",
			"jsonpath={.items[0].status.podIP}") + ":8080",
	}))
	r.write("nginx.conf", file.String())
	_, stop, err := r.Beside(t.Context(), "worker1", filepath.Join(folder, "nginx"), "-e", "stderr", "-c",
		r.file("nginx.conf"))
	r.must(err)
	defer stop()
	ask := func(scheme, host, path string) error {
		_, err := r.Exec(t.Context(), world.Client, "curl", "-sk", "--max-time", "10", "--connect-to", "::"+node+":",
			"-o", "/dev/null", scheme+"://"+host+path)
		return err
	}
	r.eventually("nginx answers", func() error { return ask("http", "nobody.test", "/") })
	for _, one := range []string{
		"https shop.test /", "https shop.test /a/b", "https shop.test /later", "http shop.test /a?x=1",
		"http app.test /app", "http app.test /app/x", "http app.test /other", "http staff.test /", "http gone.test /x",
		"https shop.test /a/b",
	} {
		f := strings.Fields(one)
		r.must(ask(f[0], f[1], f[2]))
	}

	planted := map[string][]string{
		"http": {"gone.test Location https://new.test/there https://new.test/here 1"},
		"https": {
			"shop.test Strict-Transport-Security max-age=31536000; includeSubDomains  2", "shop.test status 404 200 1",
		},
	}
	for scheme, want := range planted {
		out, err := r.Command(t.Context(), world.Client, r.file("sallyport"), "parity", r.file("nginx.access"), "--send",
			scheme+"://"+node, "--to", strings.Replace(here, "http", scheme, 1), "--rate", "1000", "-o", "json").Output()
		if err == nil {
			t.Errorf("%s: answers differ, and the exit code is 0", scheme)
		}
		var sent parity.Sent
		r.must(json.Unmarshal(out, &sent))
		var got []string
		for _, g := range sent.Groups {
			got = append(got, fmt.Sprintf("%s %s %s %s %d", g.Host, g.What, g.Before, g.Now, g.Requests))
		}
		if diff := cmp.Diff(want, got); diff != "" || sent.Unreadable+sent.Unanswered > 0 {
			t.Errorf("%s: want -, got +\n%s\n%s", scheme, diff, out)
		}
	}
}
