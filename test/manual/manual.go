// Package manual reads what the pages of the manual let a reader type, so that tests type it.
//
// A command stands in a fence marked sh, after "$ " in a fence marked console (with the output under
// it), or within a sentence. Every command is run: by the appliance's machine in a lab (test/e2e), by
// the lab's own program (test/lab), or by what [Elsewhere] names. A new command on a page is the
// machine's until somebody says otherwise, so one that does not work fails a test.
package manual

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A Command is what a reader of a page types.
type Command struct {
	Page   string // path in the repository
	Line   int
	Text   string // may have several lines
	Output string // that the page shows under it; empty: none
}

func (c Command) String() string {
	first, _, _ := strings.Cut(c.Text, "\n")
	return fmt.Sprintf("%s:%d: %s", c.Page, c.Line, first)
}

// left are pages that are no part of the manual: they tell of earlier times, or of commands that
// attackers type.
var left = regexp.MustCompile(`^(CHANGELOG|SECURITY)\.md$`)

// Pages returns the text of each page, by its path.
func Pages(root string) (map[string]string, error) {
	all := map[string]string{}
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != "." {
			return fs.SkipDir
		}
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		all[path] = string(text)
		return err
	})
	return all, err
}

// All returns the commands of all pages, by page and line.
func All(root string) (all []Command, err error) {
	pages, err := Pages(root)
	if err != nil {
		return nil, err
	}
	for _, page := range slices.Sorted(maps.Keys(pages)) {
		found, err := Commands(page, pages[page])
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

var (
	fence = regexp.MustCompile("^( *)```([a-z]*)$")
	span  = regexp.MustCompile("`([^`\n]+)`")
	// typed matches a span that is a command: a program, and what it is to do.
	typed = regexp.MustCompile(
		`^(?:sallyport|kubectl|calicoctl|make|go|lab|\.build/lab|systemctl|journalctl|ip|haproxy|openssl|apt|kill|mkdir|zstd|sysctl|ss|curl) \S`)
	// opens matches a line after which the rest of the fence belongs to the command.
	opens = regexp.MustCompile(`^[a-z_]+=`)
)

// Commands returns every command of a page in its order, each text once.
func Commands(page, text string) (all []Command, err error) {
	if left.MatchString(page) {
		return nil, nil
	}
	seen := map[string]bool{}
	add := func(line int, text, output string) {
		if text = strings.TrimSpace(text); text != "" && !seen[text] {
			seen[text] = true
			all = append(all, Command{page, line, text, output})
		}
	}
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		m := fence.FindStringSubmatch(lines[i])
		if m == nil {
			for _, s := range span.FindAllStringSubmatch(lines[i], -1) {
				if typed.MatchString(s[1]) {
					add(i+1, s[1], "")
				}
			}
			continue
		}
		first := i + 1
		var block []string
		for i++; i < len(lines) && strings.TrimSpace(lines[i]) != "```"; i++ {
			block = append(block, strings.TrimPrefix(lines[i], m[1]))
		}
		switch m[2] {
		case "sh":
			for n := 0; n < len(block); {
				end := endOf(block, n)
				add(first+n+1, strings.Join(block[n:end], "\n"), "")
				n = end
			}
		case "console":
			for n, line := range block {
				if command, ok := strings.CutPrefix(line, "$ "); ok {
					end := n + 1
					for end < len(block) && !strings.HasPrefix(block[end], "$ ") {
						end++
					}
					add(first+n+1, command, strings.Trim(strings.Join(block[n+1:end], "\n"), "\n"))
				}
			}
		case "yaml", "json", "text", "powershell":
		default:
			return nil,
				fmt.Errorf("%s:%d: a fence is marked %q; allowed: sh (commands), console (commands after \"$ \" and "+
					"their output), yaml, json, powershell, text", page, first, m[2])
		}
	}
	return all, nil
}

// endOf returns the index after the command that begins at line n of a fence.
func endOf(block []string, n int) int {
	if opens.MatchString(block[n]) {
		return len(block)
	}
	for strings.HasSuffix(block[n], `\`) && n+1 < len(block) {
		n++
	}
	return n + 1
}

// An Other runs commands that the appliance's machine in a lab does not run.
type Other struct {
	Commands *regexp.Regexp // all of the command's text
	By       string         // the test or script that runs it, or runs it with other values; empty: nothing does
	Because  string         // nothing runs it
}

// Lab is the test that runs the commands of the lab, one after another.
const Lab = "TestEveryCommandOfTheLabRuns"

var others = func() (all []Other) {
	for _, row := range []struct{ commands, by, because string }{
		// The lab's own program.
		{`go run \./test/lab setup .*|make setup`, "", "it installs what is missing, and tests begin with it"},
		{`lab up --no-calico|lab install-calico`, "TestCalicoMayComeAfterTheAppliance", ""},
		{`lab up --ipv6`, "TestBothFamiliesAreRouted", ""},
		{`lab up --calico real --ipv6-only`, "TestAClusterOfRealCalicoCanHaveIPv6Alone", ""},
		{
			`(lab|go run \./test/lab) (up --calico real|calicoctl) ?.*`, "TestPodsOfRealCalicoAnswerThroughTheAppliance",
			"",
		},
		{`lab up --(name one|name two --site 1)|ip -n sp-.*`, "TestTwoClustersShareAnApplianceAndFailApart", ""},
		{`lab up --bare`, "TestALabOutlivesTheCommandThatBroughtItUp", ""},
		{`lab kubectl|lab exec client -- curl`, "", "it is the name of a command"},
		{`(lab|\.build/lab|go run \./test/lab) .*`, Lab, ""},

		// Targets that take long. They begin as the test or script does.
		{
			`make (demo|demo CALICO=stand-in|demo-down|demo-image-down|bench|golden|fuzz|deb|test-deb)|make build && .*`,
			"test/fresh", "",
		},
		{`make demo-clusters(-down)?`, "TestOneHostIsServedByThePodsOfTwoClusters", ""},
		{`make demo-ha(-down)?`, "TestNoRequestFailsWhileMembersLeave", ""},
		{`make (image|demo-image)( .*)?`, "TestTheImageServesFromOneFile", ""},
		{
			`make (attack|check)|go run \./test/attack -all`, "TestNobodyTakesReadsWeakensOrStopsWhatBelongsToAnother",
			"",
		},
		{`make conformance`, "", "make check runs it; TestEveryKeyHasACase holds its cases to the keys"},
		{
			`(SALLYPORT_TEST_HAPROXY=.* )?make gateway( .*)?|go run \./test/gateway .*`, "",
			"the official suite of Gateway API takes minutes; make nightly runs it",
		},
		{
			`make (chaos|gateway-more|histories|night|rivals|sim|soak).*|go run \./test/chaos .*`, "",
			"it takes many minutes, or hours",
		},
		{`make (profile|race|lint|image-again|test-image)`, "", "it takes many minutes"},
		{
			`make (test|test-calico|nightly|manual|boot|fresh|fuzz .*)|go test.*`, "",
			"it runs tests, this one among them, or for longer",
		},

		// Other machines, and programs that do not end.
		{
			`(?s)(virt-install|qm|govc) .*`, "",
			"it needs that hypervisor; TestTheImageServesFromOneFile boots the same disks in QEMU",
		},
		{`zstd -d < FILE > /dev/DISK`, "", "it overwrites a disk; TestTheImageServesFromOneFile boots the same file"},
		{
			`sallyport (un)?drain --cluster (blue|NAME).*|kubectl -n default create configmap own .*|` +
				`kubectl (-n shop )?describe serviceexport web`,
			"TestOneHostIsServedByThePodsOfTwoClusters", "",
		},
		{`(?s)kubectl create secret generic oauth2-proxy .*`, "TestABrowserSignsInThroughOAuth2Proxy", ""},
		{`sallyport run`, "TestAnApplianceWithoutItsClusterRunsTellsSystemdAndLeavesHAProxy", ""},
		{`sallyport parity access.log --send .*`, "TestTheExitCodeOfSentRequestsSaysWhetherAnswersDiffer", ""},
		{`haproxy -W -S .*`, "TestAnExternalHAProxyServesAtTheFirstTry", ""},
		{`sallyport image update .*`, "TestTheImageServesFromOneFile", ""},
		{`sallyport explain NAMESPACE/SERVICE`, "TestAServiceIsExplainedByItsAddresses", ""},
		{`sallyport explain (gateway/shop/web|httproute/shop/app|KIND/NAMESPACE/NAME|http://www\.shop\.example/.*)`, "TestARequestToAGatewayIsExplained", ""},
		{`systemctl preset-all`, "TestThePresetNamesEveryUnit", ""},
		{`kubectl patch service NAME -n NAMESPACE .*`, "", "it takes an address from a Service that had it"},
		{`calicoctl node status`, "", "it needs calicoctl on the node, as root"},

		// Names of commands within sentences. Others on these pages have them whole.
		{`sallyport (manifests|upstream|explain|migrate|parity|config (import|check))|ip route flush proto bird|kubectl (apply|logs|exec|replace --force)|kubectl create token --duration|systemctl reload|haproxy -c|go tool pprof`, "", "it is the name of a command"},
		{`systemctl edit sallyport`, "", "it opens an editor"},
	} {
		all = append(all, Other{regexp.MustCompile(`^(?:` + row.commands + `)$`), row.by, row.because})
	}
	return all
}()

// Elsewhere returns what runs a command in place of the appliance's machine, or why nothing does.
func Elsewhere(c Command) (Other, bool) {
	for _, o := range others {
		if c.Output == "" && o.Commands.MatchString(c.Text) {
			return o, true
		}
	}
	return Other{}, false
}
