package update

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
)

// A release is the file of one version on the EFI system partition. The file's name has +LEFT or
// +LEFT-DONE until the version has been ready once, since systemd-boot counts starts there
// (systemd.io/AUTOMATIC_BOOT_ASSESSMENT).
type release struct {
	file    string
	version string
	left    int // starts left; -1 if the version has been ready
}

var releaseName = regexp.MustCompile(
	`^sallyport_([0-9A-Za-z][0-9A-Za-z.~^-]{0,63}?)(?:\+([0-9]{1,4})(?:-[0-9]{1,4})?)?\.efi$`)

// parseRelease parses the name of a file. It returns false if the file is not a version.
func parseRelease(file string) (release, bool) {
	part := releaseName.FindStringSubmatch(file)
	if part == nil {
		return release{}, false
	}
	r := release{file, part[1], -1}
	if part[2] != "" {
		r.left, _ = strconv.Atoi(part[2])
	}
	return r, true
}

// compareVersions orders versions as systemd-boot does, which starts the newest
// (uapi-group.org/specifications/specs/version_format_specification).
func compareVersions(a, b string) int {
	for {
		a, b = strings.TrimLeftFunc(a, foreign), strings.TrimLeftFunc(b, foreign)
		if a == "" && b == "" {
			return 0
		}
		if done, order := separator(&a, &b, '~'); done {
			return order
		}
		if a == "" || b == "" {
			return cmp.Compare(len(a), len(b))
		}
		for _, r := range []byte{'-', '^', '.'} {
			if done, order := separator(&a, &b, r); done {
				return order
			}
		}
		if order := segment(&a, &b); order != 0 {
			return order
		}
	}
}

// foreign reports whether a character has no meaning in a version.
func foreign(r rune) bool {
	return !isDigit(r) && !isLetter(r) && !strings.ContainsRune("-.~^", r)
}

func isDigit(r rune) bool  { return r >= '0' && r <= '9' }
func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }

// separator removes the separator from both. If only one of them has it, that version is older.
func separator(a, b *string, r byte) (done bool, order int) {
	inA, inB := strings.HasPrefix(*a, string(r)), strings.HasPrefix(*b, string(r))
	switch {
	case inA && inB:
		*a, *b = (*a)[1:], (*b)[1:]
	case inA:
		return true, -1
	case inB:
		return true, 1
	}
	return false, 0
}

// segment removes a number or a word from both, and compares these. A number is
// newer than a word.
func segment(a, b *string) int {
	cut := func(s *string, in func(rune) bool) string {
		rest := strings.TrimLeftFunc(*s, in)
		head := (*s)[:len(*s)-len(rest)]
		*s = rest
		return head
	}
	numberA, numberB := cut(a, isDigit), cut(b, isDigit)
	switch {
	case numberA != "" && numberB != "":
		x, y := strings.TrimLeft(numberA, "0"), strings.TrimLeft(numberB, "0")
		return cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y))
	case numberA != "":
		return 1
	case numberB != "":
		return -1
	}
	return strings.Compare(cut(a, isLetter), cut(b, isLetter))
}
