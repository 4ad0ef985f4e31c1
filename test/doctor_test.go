package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sallyport/appliance/doctor"
)

// A fault is one that the doctor can report: a call in appliance/doctor.
type fault struct {
	at    token.Position
	level string   // Failed or Doubt
	check string   // its first word
	texts []string // all that it says, between values
	fires bool     // in a scenario
}

// calls calls f with each call of a method of x in some files.
func calls(t *testing.T, pattern string,
	f func(fset *token.FileSet, in *ast.FuncDecl, method string, args []ast.Expr),
) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: %v, %q", pattern, err, paths)
	}
	fset := token.NewFileSet()
	for _, path := range paths {
		if !strings.HasSuffix(pattern, "_test.go") && strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			in, is := d.(*ast.FuncDecl)
			if !is {
				continue
			}
			ast.Inspect(in, func(n ast.Node) bool {
				if call, is := n.(*ast.CallExpr); is {
					if method, is := call.Fun.(*ast.SelectorExpr); is {
						f(fset, in, method.Sel.Name, call.Args)
					}
				}
				return true
			})
		}
	}
}

// texts returns the strings in expressions, and in what the function has assigned to their names.
func texts(in *ast.FuncDecl, all ...ast.Expr) (found []string) {
	for _, e := range all {
		ast.Inspect(e, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
					found = append(found, text)
				}
			case *ast.Ident:
				ast.Inspect(in, func(m ast.Node) bool {
					if set, is := m.(*ast.AssignStmt); is && len(set.Lhs) == len(set.Rhs) {
						for i, to := range set.Lhs {
							if name, is := to.(*ast.Ident); is && name.Name == n.Name && set.End() < n.Pos() {
								if value, is := set.Rhs[i].(*ast.BinaryExpr); is {
									found = append(found, texts(in, value.X)...)
								}
								found = append(found, texts(in, literals(set.Rhs[i])...)...)
							}
						}
					}
					return true
				})
			}
			return true
		})
	}
	return found
}

// literals returns the expression if it is a string, or the format if it is a call with a format.
func literals(e ast.Expr) []ast.Expr {
	switch e := e.(type) {
	case *ast.BasicLit:
		return []ast.Expr{e}
	case *ast.CallExpr:
		if len(e.Args) > 0 {
			return literals(e.Args[0])
		}
	}
	return nil
}

func firstWord(texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	word, _, _ := strings.Cut(texts[0], " ")
	return word
}

// empty reports whether an expression is the empty string.
func empty(e ast.Expr) bool {
	text, is := e.(*ast.BasicLit)
	return is && text.Value == `""`
}

// listed reports whether the doctor has a check of a name.
func listed(check string) bool {
	for _, c := range doctor.Checks {
		if c.Name == check {
			return true
		}
	}
	return false
}

// TestEveryCheckOfTheDoctorHasAScenario holds the doctor's findings to the calls of finds in
// the tests of test/e2e. A scenario is that of the finding which has most of its words.
func TestEveryCheckOfTheDoctorHasAScenario(t *testing.T) {
	var faults []*fault
	calls(t, "../appliance/doctor/*.go", func(fset *token.FileSet, in *ast.FuncDecl, method string, args []ast.Expr) {
		level, is := map[string]string{"ok": "Healthy", "failed": "Failed", "doubt": "Doubt", "expiry": "Doubt"}[method]
		if check := texts(in, args[:min(1, len(args))]...); is && len(check) > 0 && !listed(check[0]) {
			t.Errorf("%s: %q is not among the doctor's Checks", fset.Position(args[0].Pos()), check[0])
		}
		// without a name, expiry passes on that of its caller
		if level == "" || level == "Healthy" || len(args) < 4 || len(texts(in, args[0])) == 0 {
			return
		}
		if empty(args[2]) || empty(args[3]) {
			if said := texts(in, args[1]); len(said) > 0 { // else a sentence from elsewhere, which says it
				t.Errorf("%s: %q has no remedy or no command", fset.Position(args[0].Pos()), said)
			}
		}
		faults = append(faults, &fault{
			at: fset.Position(args[0].Pos()), level: level,
			check: firstWord(texts(in, args[0])), texts: texts(in, args[1:]...),
		})
	})
	if len(faults) < 40 {
		t.Fatalf("the doctor has %d findings; are they read?", len(faults))
	}
	calls(t, "e2e/*_test.go", func(_ *token.FileSet, in *ast.FuncDecl, method string, args []ast.Expr) {
		if method != "finds" && method != "found" || len(args) < 4 {
			return
		}
		level, is := args[1].(*ast.SelectorExpr)
		if !is {
			return
		}
		check, words := firstWord(texts(in, args[2])), texts(in, args[3:]...)
		most, firing := 0, []*fault(nil)
		of := func(f *fault) bool { return f.level == level.Sel.Name && f.check == check }
		first := slices.IndexFunc(faults, of)
		alone := first >= 0 && !slices.ContainsFunc(faults[first+1:], of)
		for _, f := range faults {
			if !of(f) {
				continue
			}
			said := 0
			if alone || strings.Join(f.texts, "") == "" {
				said = 1 // it has no words of its own, or there is no other one
			}
			for _, w := range words {
				if slices.ContainsFunc(f.texts, func(text string) bool { return strings.Contains(text, w) }) {
					said += len(w)
				}
			}
			if said > most {
				most, firing = said, nil
			}
			if said == most && said > 0 {
				firing = append(firing, f)
			}
		}
		for _, f := range firing {
			f.fires = true
		}
	})
	for _, f := range faults {
		if !f.fires {
			t.Errorf("%s:%d: no scenario in which the doctor finds %s of %s: %q", filepath.Base(f.at.Filename),
				f.at.Line, f.level, f.check, f.texts)
		}
	}
}
