package haproxy

import (
	"slices"
	"testing"
)

func TestSharesAddUpToAllRequests(t *testing.T) {
	for name, c := range map[string]struct {
		shares []Share
		text   string
		want   []Share
	}{
		"none":                  {nil, "invalid", []Share{{Invalid, chances}}},
		"no weight":             {[]Share{{"a", 0}, {"b", 0}}, "invalid", []Share{{Invalid, chances}}},
		"one":                   {[]Share{{"a", 1}, {"b", 0}}, "a", []Share{{"a", chances}}},
		"twice the same":        {[]Share{{"a", 1}, {"a", 7}}, "a", []Share{{"a", chances}}},
		"the greatest is first": {[]Share{{"a", 1}, {"b", 3}}, "49152@b+65536@a", []Share{{"b", 49152}, {"a", 16384}}},
		"a part is invalid":     {[]Share{{Invalid, 1}, {"b", 1}}, "32768@b+65536@invalid", []Share{{"b", 32768}, {Invalid, 32768}}},
		"very unequal":          {[]Share{{"a", 1}, {"b", 1e6}}, "65535@b+65536@a", []Share{{"b", 65535}, {"a", 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Split(c.shares)
			if err != nil || got.String() != c.text || !slices.Equal(got.Shares(), c.want) || got.validate() != nil {
				t.Errorf("got %s %v, %v, %v; want %s %v", got, got.Shares(), err, got.validate(), c.text, c.want)
			}
		})
	}
	for _, wrong := range [][]Share{{{"a b", 1}}, {{"a@b", 1}}, {{"a", -1}}, {{"a", 1e6 + 1}}} {
		if got, err := Split(wrong); err == nil {
			t.Errorf("%v: got %s and no error", wrong, got)
		}
	}
	for _, wrong := range []string{"a b", "a+b", "1@a", "65536@a+1@b", "x@a"} {
		if To(wrong).validate() == nil {
			t.Errorf("%s is accepted as a target", wrong)
		}
	}
}
