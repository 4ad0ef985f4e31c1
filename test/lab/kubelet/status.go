package kubelet

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// finished reports whether a pod has ended for good.
func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// status returns the pod's status as it should be now. Fields of base that others write stay. The
// caller holds p.mu.
func (p *pod) status(base *corev1.Pod, now metav1.Time) corev1.PodStatus {
	s := *base.Status.DeepCopy()
	if s.StartTime == nil {
		s.StartTime = &now
	}
	s.HostIP, s.HostIPs = hostIPs(p.hostIPs)
	if len(p.addrs) > 0 {
		s.PodIP, s.PodIPs = podIPs(p.addrs)
	}
	s.InitContainerStatuses = statuses(p.init)
	s.ContainerStatuses = statuses(p.main)
	s.ObservedGeneration = p.object.Generation
	leaving := isClosed(p.leaving)
	s.Phase = phase(p.object.Spec.RestartPolicy, leaving, s.InitContainerStatuses, s.ContainerStatuses)

	ready := true
	for _, c := range s.ContainerStatuses {
		ready = ready && c.Ready
	}
	set := func(kind corev1.PodConditionType, is bool, reason, message string) {
		c := corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now}
		if !is {
			c.Status, c.Reason, c.Message = corev1.ConditionFalse, reason, message
		}
		at := slices.IndexFunc(s.Conditions, func(have corev1.PodCondition) bool { return have.Type == kind })
		before, known := p.conditions[kind]
		if !known && at >= 0 {
			before, known = s.Conditions[at], true
		}
		if known && before.Status == c.Status {
			c.LastTransitionTime = before.LastTransitionTime
		}
		c.ObservedGeneration = p.object.Generation
		p.conditions[kind] = c
		if at >= 0 {
			s.Conditions[at] = c
		} else {
			s.Conditions = append(s.Conditions, c)
		}
	}
	done := "PodCompleted"
	if s.Phase != corev1.PodSucceeded {
		done = "ContainersNotReady"
	}
	set(corev1.PodScheduled, true, "", "")
	set(corev1.PodReadyToStartContainers, len(p.addrs) > 0, "NetworkNotReady", p.trouble)
	set(corev1.PodInitialized, p.inited, "ContainersNotInitialized", "")
	set(corev1.ContainersReady, ready, done, "")
	reason, message := done, ""
	for _, gate := range p.object.Spec.ReadinessGates {
		if ready && !slices.ContainsFunc(s.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == gate.ConditionType && c.Status == corev1.ConditionTrue
		}) {
			ready, reason, message = false, "ReadinessGatesNotReady",
				"condition "+string(gate.ConditionType)+" is not True"
		}
	}
	set(corev1.PodReady, ready, reason, message)
	return s
}

func statuses(all []*container) []corev1.ContainerStatus {
	var list []corev1.ContainerStatus
	for _, c := range all {
		c.mu.Lock()
		started := c.started
		list = append(list, corev1.ContainerStatus{
			Name: c.spec.Name, Image: c.spec.Image, ImageID: c.spec.Image, ContainerID: c.id,
			State: c.state, LastTerminationState: c.last,
			Ready: c.ready, Started: &started, RestartCount: c.restarts,
		})
		c.mu.Unlock()
	}
	return list
}

// phase returns the pod's phase (Kubernetes, "Pod Lifecycle").
func phase(policy corev1.RestartPolicy, leaving bool, inits, mains []corev1.ContainerStatus) corev1.PodPhase {
	var waiting, running, failed int
	for _, c := range mains {
		switch {
		case c.State.Running != nil:
			running++
		case c.State.Terminated != nil:
			if c.State.Terminated.ExitCode != 0 {
				failed++
			}
		case c.LastTerminationState.Terminated != nil && leaving:
			if c.LastTerminationState.Terminated.ExitCode != 0 {
				failed++
			}
		case c.LastTerminationState.Terminated != nil:
			running++ // between two runs
		default:
			waiting++
		}
	}
	for _, c := range inits {
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 && (policy == corev1.RestartPolicyNever || leaving) {
			return corev1.PodFailed
		}
		leaving = leaving && c.State.Running == nil
	}
	switch {
	case leaving && running == 0 && (waiting > 0 || failed > 0):
		return corev1.PodFailed
	case leaving && running == 0:
		return corev1.PodSucceeded
	case waiting > 0:
		return corev1.PodPending
	case running > 0 || policy == corev1.RestartPolicyAlways:
		return corev1.PodRunning
	case failed > 0 && policy == corev1.RestartPolicyOnFailure:
		return corev1.PodRunning
	case failed > 0:
		return corev1.PodFailed
	}
	return corev1.PodSucceeded
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
