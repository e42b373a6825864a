package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"example.com/conductor/events/zmq"
)

// buildInfo tells which build is running.
func buildInfo() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "conductor_build_info", Help: "1, labelled with the version.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	g.Set(1)
	return g
}

// unclaimedMessages counts the messages that no source takes.
func unclaimedMessages(s *zmq.Sockets) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "conductor_unclaimed_messages_total", Help: "Messages on bound sockets whose topic and rank no source claims.",
	}, func() float64 {
		messages, _ := s.ListStrays()
		return float64(messages)
	})
}
