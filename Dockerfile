# The image of the server:
#   docker build -t conductor:0.1.0 .
# and one with conductor-lab, which simulates a fleet of engines:
#   docker build -t conductor-lab:0.1.0 --target lab .
# The binaries are static and need nothing from the image but the certificates of authorities.
# deploy/image makes the same image of a release without a container daemon.
FROM golang:1.26-bookworm AS source
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .

FROM source AS build
ARG VERSION=dev
ARG COMMIT=
ARG DATE=
RUN CGO_ENABLED=0 go build -buildvcs=false -trimpath \
      -ldflags "-s -w -buildid= -X main.version=${VERSION} -X main.commit=${COMMIT} -X main.date=${DATE}" \
      -o /out/conductor ./cmd/conductor \
    && mkdir -p /out/state && touch /out/state/.keep

FROM source AS build-lab
ARG VERSION=dev
ARG COMMIT=
RUN CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags "-X main.version=${VERSION} -X main.commit=${COMMIT}" \
      -o /out/conductor-lab ./cmd/conductor-lab

FROM scratch AS lab
COPY --from=build-lab /out/conductor-lab /usr/bin/conductor-lab
USER 65532:65532
LABEL org.opencontainers.image.title="conductor-lab" \
      org.opencontainers.image.description="Simulates fleets of inference engines, to try and measure a Conductor" \
      org.opencontainers.image.source="https://example.com/conductor" \
      org.opencontainers.image.licenses="Apache-2.0"
ENTRYPOINT ["/usr/bin/conductor-lab"]

# The last stage is the one that is built by default.
FROM scratch AS server
ARG VERSION=dev
ARG COMMIT=
ARG DATE=
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/conductor /usr/bin/conductor
# Snapshots; the rest of the file system may be read-only.
COPY --from=build --chown=65532:65532 /out/state /var/lib/conductor
USER 65532:65532
EXPOSE 13333 8090 50051
VOLUME /var/lib/conductor
LABEL org.opencontainers.image.title="conductor" \
      org.opencontainers.image.description="KV-cache indexer for fleets of inference engines" \
      org.opencontainers.image.source="https://example.com/conductor" \
      org.opencontainers.image.documentation="https://example.com/conductor/blob/main/docs/README.md" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.created="${DATE}"
# It reads the same settings as the server, so it knows ports and TLS. Name your settings file by
# CONDUCTOR_CONFIG_PATH, not by a flag of serve, so that both of them read it.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["/usr/bin/conductor", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/conductor"]
CMD ["serve"]
