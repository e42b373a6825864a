package main

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// newTracer returns a tracer that sends spans over OTLP, set up by OpenTelemetry's own environment variables, and a function that sends
// what is left. Without OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT there is no tracer. Spans follow the sampling
// of their parent, which is Envoy's, unless OTEL_TRACES_SAMPLER says otherwise.
func newTracer(ctx context.Context, lookup func(string) (string, bool), log zerolog.Logger) (trace.Tracer, func(), error) {
	of := func(names ...string) string {
		for _, name := range names {
			if v, _ := lookup(name); v != "" {
				return v
			}
		}
		return ""
	}
	if of("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT") == "" || of("OTEL_SDK_DISABLED") == "true" ||
		of("OTEL_TRACES_EXPORTER") == "none" {
		return nil, func() {}, nil
	}
	if p := of("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); p != "" && p != "http/protobuf" {
		return nil, nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL %q: only http/protobuf is known, whose port is 4318", p)
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("traces: %w", err)
	}
	// Attributes of the environment come last, so that OTEL_SERVICE_NAME wins.
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "conductor-picker"),
		attribute.String("service.version", version)), resource.WithFromEnv())
	if err != nil {
		return nil, nil, fmt.Errorf("traces: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn().Err(err).Msg("traces") }))
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	flush := func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Warn().Err(err).Msg("the last traces are lost")
		}
	}
	return provider.Tracer("conductor-picker"), flush, nil
}
