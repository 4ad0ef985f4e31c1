package test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// The bounds of what somebody has to hold in the head at once.
const (
	mostFields  = 25   // of a struct
	mostLines   = 100  // of a function
	mostOfARoom = 6000 // lines of a package, but for large
)

// large is the package that may have more lines: it lets no value into HAProxy's configuration that it has not
// checked, and its unexported fields hold that.
const large = "../haproxy"

// TestTheProductsCodeHasItsForm holds rules that no linter has: a literal of a struct of the same
// package with more than three fields names them, and no map by a bool stands for an if. No struct has more than
// mostFields fields, no function more than mostLines lines, and no package but one more than mostOfARoom lines.
func TestTheProductsCodeHasItsForm(t *testing.T) {
	rooms := map[string][]*ast.File{}
	fset := token.NewFileSet()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "../test" || path != ".." && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(fset, path, nil, 0)
		rooms[filepath.Dir(path)] = append(rooms[filepath.Dir(path)], file)
		return err
	})
	if err != nil || len(rooms) < 15 {
		t.Fatalf("%d folders with code: %v", len(rooms), err)
	}
	for room, files := range rooms {
		if n := linesOf(fset, files); n > mostOfARoom && room != large {
			t.Errorf("%s has %d lines, and a package has at most %d: move what belongs together to a package of its own",
				room, n, mostOfARoom)
		}
		for _, at := range unkeyed(files) {
			t.Errorf("%s: name the fields", fset.Position(at))
		}
		for _, at := range chosenByMap(files) {
			t.Errorf("%s: use an if, or status.Either", fset.Position(at))
		}
		for _, at := range tooLarge(fset, files, mostFields, mostLines) {
			t.Errorf("%s: a struct has at most %d fields, a function at most %d lines", fset.Position(at), mostFields,
				mostLines)
		}
	}
}

// TestTheFormRefusesBadCode shows that the checks above can fail.
func TestTheFormRefusesBadCode(t *testing.T) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "bad.go", `package bad
type four struct{ a, b, c, d int }
type pair struct{ a, b int }
var all = []any{four{1, 2, 3, 4}, &four{1, 2, 3, 4}, four{a: 1}, four{}, pair{1, 2}}
var list = []four{{1, 2, 3, 4}, {a: 1}}
var byName = map[string]*four{"one": {1, 2, 3, 4}}
var word = map[bool]string{true: "yes"}[len(all) > 0]
var seen = map[bool]string{}
type five struct{ a, b int; c, d, e string }
func long() int {
	four := 4

	return four
}
`, 0)
	if err != nil {
		t.Fatal(err)
	}
	lines := func(all []token.Pos) (lines []int) {
		for _, at := range all {
			lines = append(lines, fset.Position(at).Line)
		}
		return lines
	}
	got := fmt.Sprint(lines(unkeyed([]*ast.File{file})), lines(chosenByMap([]*ast.File{file})),
		lines(tooLarge(fset, []*ast.File{file}, 4, 4)), linesOf(fset, []*ast.File{file}))
	if want := "[4 4 5 6] [7] [9 10] 14"; got != want {
		t.Errorf("found on lines %s, want %s", got, want)
	}
}

// linesOf returns the number of lines of some files.
func linesOf(fset *token.FileSet, files []*ast.File) (n int) {
	for _, file := range files {
		n += fset.File(file.Pos()).LineCount()
	}
	return n
}

// tooLarge returns the structs with more than so many fields, and the functions with more than so many lines.
func tooLarge(fset *token.FileSet, files []*ast.File, fields, lines int) (found []token.Pos) {
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if s, is := n.Type.(*ast.StructType); is && s.Fields.NumFields() > fields {
					found = append(found, n.Pos())
				}
			case *ast.FuncDecl:
				if fset.Position(n.End()).Line-fset.Position(n.Pos()).Line >= lines {
					found = append(found, n.Pos())
				}
			}
			return true
		})
	}
	return found
}

// unkeyed returns the literals of structs with more than three fields that do not name them. The
// structs are those of the files.
func unkeyed(files []*ast.File) (found []token.Pos) {
	const few = 3
	fields := map[string]int{}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, is := n.(*ast.TypeSpec); is {
				if s, is := spec.Type.(*ast.StructType); is {
					fields[spec.Name.Name] = s.Fields.NumFields()
				}
			}
			return true
		})
	}
	var look func(lit *ast.CompositeLit, of ast.Expr)
	look = func(lit *ast.CompositeLit, of ast.Expr) {
		var element ast.Expr
		switch of := of.(type) {
		case *ast.StarExpr:
			look(lit, of.X)
			return
		case *ast.ArrayType:
			element = of.Elt
		case *ast.MapType:
			element = of.Value
		case *ast.Ident:
			if fields[of.Name] > few && len(lit.Elts) > 0 {
				if _, keyed := lit.Elts[0].(*ast.KeyValueExpr); !keyed {
					found = append(found, lit.Pos())
				}
			}
			return
		}
		for _, e := range lit.Elts {
			if pair, is := e.(*ast.KeyValueExpr); is {
				e = pair.Value
			}
			if inner, is := e.(*ast.CompositeLit); is && inner.Type == nil {
				look(inner, element)
			}
		}
	}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, is := n.(*ast.CompositeLit); is && lit.Type != nil {
				look(lit, lit.Type)
			}
			return true
		})
	}
	return found
}

// chosenByMap returns the indexes into literals of maps by a bool.
func chosenByMap(files []*ast.File) (found []token.Pos) {
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if index, is := n.(*ast.IndexExpr); is {
				if lit, is := index.X.(*ast.CompositeLit); is {
					if of, is := lit.Type.(*ast.MapType); is {
						if key, is := of.Key.(*ast.Ident); is && key.Name == "bool" {
							found = append(found, index.Pos())
						}
					}
				}
			}
			return true
		})
	}
	return found
}
