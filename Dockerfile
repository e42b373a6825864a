# The binary is static and needs nothing from the image but the certificates of authorities.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev
ARG COMMIT=
ARG DATE=
RUN CGO_ENABLED=0 go build -buildvcs=false -trimpath \
      -ldflags "-s -w -buildid= -X main.version=${VERSION} -X main.commit=${COMMIT} -X main.date=${DATE}" \
      -o /out/conductor ./cmd/conductor \
    && mkdir -p /out/state && touch /out/state/.keep

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/conductor /usr/bin/conductor
# Snapshots; the rest of the file system may be read-only.
COPY --from=build --chown=65532:65532 /out/state /var/lib/conductor
USER 65532:65532
EXPOSE 13333 8090 50051
VOLUME /var/lib/conductor
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["/usr/bin/conductor", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/conductor"]
CMD ["serve"]
