package haproxy

import (
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"maps"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// seen returns the picture of a worker that has one server in each of these backends.
func seen(gen string, servers map[string]Live) picture {
	all := map[string]*LiveBackend{}
	for name, s := range servers {
		s.Name = "s"
		all[name] = &LiveBackend{Servers: []Live{s}}
	}
	return picture{pid: 1, gen: gen, shape: "shape", backends: NewLiveBackends(all)}
}

// told returns a picture after commands have changed one backend of it.
func (p picture) told(name string, now *LiveBackend) picture {
	p.backends = p.backends.With(map[string]*LiveBackend{name: now})
	return p
}

func TestAReadingOfTheWorkerIsMergedIntoWhatItWasToldMeanwhile(t *testing.T) {
	open, shut := Live{State: Open, Check: Up}, Live{State: Closed, Check: Unchecked}
	down := Live{State: Open, Check: Down, Failure: "L4CON"}
	one := func(l Live) *LiveBackend { l.Name = "s"; return &LiveBackend{Servers: []Live{l}} }
	before := seen("gen", map[string]Live{"a": open, "b": open})
	aShut, bShut := before.told("a", one(shut)), before.told("b", one(shut))
	aDown, bDown := before.told("a", one(down)), before.told("b", one(down))
	more, fewer := before.told("c", one(open)), before.told("b", nil)
	other := before
	other.pid++
	for name, x := range map[string]struct {
		read, now picture
		want      map[string]Live // nil: as before the reading
		found     finding
	}{
		"nothing happened":                   {before, before, map[string]Live{"a": open, "b": open}, agrees},
		"a check failed":                     {aDown, before, map[string]Live{"a": down, "b": open}, agrees},
		"closed meanwhile, read before":      {before, aShut, map[string]Live{"a": shut, "b": open}, agrees},
		"closed meanwhile, read after":       {aShut, aShut, map[string]Live{"a": shut, "b": open}, agrees},
		"closed meanwhile, and another down": {bDown, aShut, map[string]Live{"a": shut, "b": down}, agrees},
		"a backend came meanwhile": {
			before, more,
			map[string]Live{"a": open, "b": open, "c": open},
			agrees,
		},
		"a backend went meanwhile":             {before, fewer, map[string]Live{"a": open}, agrees},
		"another hand closed a server":         {bShut, before, nil, differs},
		"another hand removed a server":        {before.told("b", &LiveBackend{}), before, nil, differs},
		"another hand added a backend":         {more, before, nil, differs},
		"another hand removed a backend":       {fewer, before, nil, differs},
		"another hand while we closed another": {bShut, aShut, nil, differs},
		"another worker":                       {other, before, nil, differs},
		"another generation": {
			seen("other", map[string]Live{"a": open, "b": open}), before, nil,
			differs,
		},
		"nothing was read":               {picture{}, before, nil, differs},
		"a reload meanwhile":             {before, other, nil, overtaken},
		"the worker got ahead meanwhile": {before, seen(ahead, map[string]Live{"a": open, "b": open}), nil, overtaken},
	} {
		got, found := merge(before, x.read, x.now)
		want := x.now
		if x.want != nil {
			want = seen(x.now.gen, x.want)
		}
		has, wanted := maps.Collect(got.backends.All()), maps.Collect(want.backends.All())
		diff := cmp.Diff(wanted, has, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}))
		if found != x.found || diff != "" || !got.sameFiles(want) {
			t.Errorf("%s: got finding %d, want %d; the backends: -want +got\n%s", name, found, x.found, diff)
		}
	}
}

// TestABeliefChangesInItsFileAlone reads the package: nowhere else is a field of a belief, or of what
// is believed of the worker, assigned.
func TestABeliefChangesInItsFileAlone(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	set := gotoken.NewFileSet()
	for _, name := range files {
		if name == "belief.go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, is := d.(*ast.FuncDecl)
			if !is {
				continue
			}
			believes := map[string]bool{} // names of the function's beliefs
			if f.Recv != nil && len(f.Recv.List[0].Names) > 0 {
				if star, is := f.Recv.List[0].Type.(*ast.StarExpr); is && fmt.Sprint(star.X) == "belief" {
					believes[f.Recv.List[0].Names[0].Name] = true
				}
			}
			ast.Inspect(f, func(n ast.Node) bool {
				to := []ast.Expr(nil)
				switch n := n.(type) {
				case *ast.AssignStmt:
					for i, e := range n.Rhs {
						if u, is := e.(*ast.UnaryExpr); is && throughBelief(u.X, nil) && n.Tok == gotoken.DEFINE {
							believes[fmt.Sprint(n.Lhs[i])] = true
						}
					}
					to = n.Lhs
				case *ast.IncDecStmt:
					to = []ast.Expr{n.X}
				}
				for _, e := range to {
					if s, is := e.(*ast.SelectorExpr); is && throughBelief(s.X, believes) {
						t.Errorf("%s: a belief is changed outside of belief.go", set.Position(e.Pos()))
					}
				}
				return true
			})
		}
	}
}

// throughBelief reports whether an expression selects a belief, or something in it.
func throughBelief(e ast.Expr, believes map[string]bool) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return believes[e.Name]
	case *ast.SelectorExpr:
		return e.Sel.Name == "belief" || throughBelief(e.X, believes)
	}
	return false
}
