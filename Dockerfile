# The relay, and the demo, each a static binary in an image with nothing else.
#
#   docker build -t cdc-relay .
#   docker build -t cdc-relay-demo --target demo .
#
# Where no Go image can be pulled, Dockerfile.local packs binaries that are built already.
ARG GO_IMAGE=golang:1.26
FROM ${GO_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/ ./cmd/cdc-relay ./cmd/cdc-relay-demo

FROM scratch AS demo
COPY --from=build /out/cdc-relay-demo /cdc-relay-demo
USER 65532:65532
ENTRYPOINT ["/cdc-relay-demo"]

FROM scratch AS relay
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/cdc-relay /cdc-relay
USER 65532:65532
ENTRYPOINT ["/cdc-relay"]
CMD ["run"]
