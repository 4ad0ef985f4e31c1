package input

import "fmt"

// mostTold bounds the problems of one object that are reported, and mostOfNamespace those of a
// namespace.
const (
	mostTold        = 20
	mostOfNamespace = 10_000
)

// Brief keeps the first problems of each object, and of each namespace, and counts the rest.
// problems are sorted by namespace, and those of one object stand together. The bounds keep
// one object, and the objects of one namespace, from filling the status and using up the Events.
func Brief(problems []Problem) []Problem {
	var short []Problem
	count, ofNamespace, left := 0, 0, 0
	for i, p := range problems {
		if i == 0 || p.ObjectRef != problems[i-1].ObjectRef {
			count = 0
		}
		if i == 0 || p.Cluster != problems[i-1].Cluster || p.Namespace != problems[i-1].Namespace {
			ofNamespace, left = 0, 0
		}
		next := Problem{}
		if i+1 < len(problems) {
			next = problems[i+1]
		}
		last, lastOfNamespace := p.ObjectRef != next.ObjectRef,
			p.Cluster != next.Cluster || p.Namespace != next.Namespace
		count++
		switch {
		case ofNamespace >= mostOfNamespace:
			left++
		case count <= mostTold:
			ofNamespace++
			short = append(short, p)
		case last:
			ofNamespace++
			short = append(short, Problem{
				ObjectRef: p.ObjectRef, Reason: "MoreProblems",
				Why: fmt.Sprintf("there are %d more problems with this object: correct the first %d to see the next",
					count-mostTold, mostTold),
			})
		}
		if lastOfNamespace && left > 0 {
			short = append(short, Problem{
				ObjectRef: p.ObjectRef, Reason: "MoreProblems",
				Why: fmt.Sprintf("there are %d more problems with objects of namespace %s: correct some of the first "+
					"%d to see them", left, p.Namespace, mostOfNamespace),
			})
		}
	}
	return short
}
