package rig

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteFiguresMakesItsFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a folder", "figures.json")
	if err := WriteFigures(file, []int{1}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "[\n  1\n]\n" {
		t.Errorf("got %q, %v", text, err)
	}
	if err := WriteFigures("", []int{1}); err != nil {
		t.Errorf("without a name: got %v", err)
	}
}
